//! `perf network`: what the library's network of sockets gives by itself, without kernels, between two hosts (network
//! namespaces); beside what a plain TCP connection gives, and `iperf3` where it is installed.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nccl::plugin::network::{NetBuffer, NetReceiver, NetSender, Network, RegionId};
use nccl::transport::{SocketInterface, SocketNetwork, SocketSettings};

use crate::common::hosts::Hosts;
use crate::flags;

/// Text of `perf network -h`.
const HELP: &str = "\
perf network: times sockets as a network of the library, between two network namespaces

  perf network [--seconds N] [--encrypt]

One line for each number of connections and of streams; GB/s one way with messages of 64 MiB, and microseconds of half a
round trip of 8 bytes; with --encrypt as ncclSetEncryption has it. Baselines: iperf3, if it is there, and a plain TCP
connection whose two ends wait.
";

/// Makes this process one end: `send` or `receive`.
const END: &str = "OXCCL_PERF_NETWORK";
/// Bytes of a message that is all throughput.
const LARGE: usize = 64 << 20;
/// Messages that are under way at a time.
const DEPTH: usize = 4;
/// Round trips that are timed together.
const TRIPS: u32 = 2000;
/// Longest wait for the other end.
const LIMIT: Duration = Duration::from_secs(30);
/// Connections and the streams of each.
const WAYS: [(usize, u32); 5] = [(1, 1), (1, 2), (1, 4), (2, 1), (4, 1)];
/// Port of the plain connection, and of iperf3.
const PORTS: (u16, u16) = (7001, 7002);

/// The address of host 1 or 2.
fn address(host: u8) -> IpAddr {
    Ipv4Addr::new(10, 9, 0, host).into()
}

/// Runs this process as an end, if it is one.
pub fn main_if_end() -> Option<i32> {
    let role = std::env::var(END).ok()?;
    let mut words = role.split(' ');
    let (sends, folder) = (words.next()? == "send", PathBuf::from(words.next()?));
    let seconds = words.next()?.parse().ok()?;
    let encrypted_by = words.next()?.parse::<bool>().ok()?.then_some(1);
    let outcome = if sends { Sender { folder, seconds, encrypted_by }.run() } else { receive(&folder, encrypted_by) };
    outcome.inspect_err(|why| eprintln!("perf network: {why}")).map_or(Some(3), |()| Some(0))
}

/// `perf network`.
pub fn main(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let (mut seconds, mut encrypt) = (Some(2u32), false);
    while let Some(word) = arguments.next() {
        match word.to_str() {
            Some("--seconds") => seconds = arguments.next().and_then(|value| value.to_str()?.parse().ok()),
            Some("--encrypt") => encrypt = true,
            _ => seconds = None,
        }
    }
    let Some(seconds) = seconds else {
        print!("{HELP}");
        return ExitCode::from(crate::USAGE);
    };
    match run(seconds, encrypt) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("perf network: {why}");
            ExitCode::from(crate::FAILED)
        }
    }
}

fn run(seconds: u32, encrypt: bool) -> Result<(), String> {
    let hosts = Hosts::new(2).ok_or("the system permits no network namespaces")?;
    println!("# flag exchange between two processes: {}", flags::show(flags::exchange_ns()));
    let best = iperf(&hosts, seconds);
    match &best {
        Some(list) => list.iter().for_each(|(streams, rate)| println!("iperf3, {streams} streams: {rate:.2} GB/s")),
        None => println!("# iperf3 is not there"),
    }
    let folder = tempfolder()?;
    let (me, text) = (std::env::current_exe().map_err(|error| error.to_string())?, folder.display().to_string());
    let start = |host: usize, role: &str| -> Result<Child, String> {
        let mut command = hosts.command(host, &me);
        command.env(END, format!("{role} {text} {seconds} {encrypt}")).stdin(Stdio::null());
        command.spawn().map_err(|error| error.to_string())
    };
    let mut receiver = start(0, "receive")?;
    let sent = start(1, "send")?.wait().map_err(|error| error.to_string())?;
    let _ = receiver.kill();
    let _ = receiver.wait();
    let _ = std::fs::remove_dir_all(&folder);
    if let Some(most) = best.iter().flatten().map(|(_, rate)| *rate).reduce(f64::max) {
        println!("# best of iperf3: {most:.2} GB/s");
    }
    if sent.success() { Ok(()) } else { Err("an end has failed".to_string()) }
}

fn tempfolder() -> Result<PathBuf, String> {
    let folder = std::env::temp_dir().join(format!("oxccl-perf-network-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map(|()| folder).map_err(|error| error.to_string())
}

/// What iperf3 gives with one stream and with two, in GB/s.
fn iperf(hosts: &Hosts, seconds: u32) -> Option<Vec<(u32, f64)>> {
    Command::new("iperf3").arg("-v").output().ok()?;
    let port = PORTS.1.to_string();
    let mut server = hosts.command(0, Path::new("iperf3"));
    let mut server = server.args(["-s", "-p", &port]).stdout(Stdio::null()).spawn().ok()?;
    std::thread::sleep(Duration::from_millis(500));
    let mut rates = Vec::new();
    for streams in [1u32, 2] {
        let mut client = hosts.command(1, Path::new("iperf3"));
        client.args(["-c", "10.9.0.1", "-p", &port, "-J", "-t", &seconds.to_string(), "-P", &streams.to_string()]);
        let output = client.output().ok()?;
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
        rates.push((streams, json["end"]["sum_received"]["bits_per_second"].as_f64()? / 8e9));
    }
    let _ = server.kill();
    let _ = server.wait();
    Some(rates)
}

fn open(host: u8, streams: u32, encrypted_by: Option<u128>) -> Result<Arc<SocketNetwork>, String> {
    let at = SocketInterface::unknown(SocketAddr::new(address(host), 0));
    let settings =
        SocketSettings { threads: 1, streams: Some(streams), piece_min: 64 << 10, buffers: (None, None), encrypted_by };
    SocketNetwork::open(u32::from(host), vec![at], settings).map_err(|error| error.to_string())
}

/// What the other end has written under a name.
fn read(folder: &Path, name: &str) -> Result<Vec<u8>, String> {
    let until = Instant::now() + LIMIT;
    loop {
        match std::fs::read(folder.join(name)) {
            Ok(bytes) => return Ok(bytes),
            Err(error) if Instant::now() > until => return Err(format!("{name}: {error}")),
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

fn write(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), String> {
    let hidden = folder.join(format!(".{name}"));
    let written = std::fs::write(&hidden, bytes).and_then(|()| std::fs::rename(hidden, folder.join(name)));
    written.map_err(|error| format!("{name}: {error}"))
}

fn later<T>(mut get: impl FnMut() -> Result<Option<T>, nccl::error::Error>) -> Result<T, String> {
    let until = Instant::now() + LIMIT;
    loop {
        match get() {
            Ok(Some(value)) => return Ok(value),
            Ok(None) if Instant::now() > until => return Err("the other end does not come".to_string()),
            Ok(None) => std::thread::yield_now(),
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Connects with the other end, as whoever sends.
fn sender(network: &SocketNetwork, folder: &Path, name: &str) -> Result<Box<dyn NetSender>, String> {
    let handle = read(folder, name)?;
    let mut connecting = network.connect(0, &handle).map_err(|error| error.to_string())?;
    later(|| connecting.connect())
}

/// Connects with the other end, as whoever receives.
fn receiver(network: &SocketNetwork, folder: &Path, name: &str) -> Result<Box<dyn NetReceiver>, String> {
    let mut listener = network.listen(0).map_err(|error| error.to_string())?;
    write(folder, name, listener.handle())?;
    later(|| listener.accept())
}

fn buffer(bytes: &mut [u8]) -> NetBuffer {
    NetBuffer { address: bytes.as_mut_ptr() as u64, bytes: bytes.len(), region: RegionId(0) }
}

/// Sends a message and waits until its memory is free.
fn send_one(sender: &mut dyn NetSender, bytes: &mut [u8]) -> Result<(), String> {
    // SAFETY: the message lives until the request is done.
    let request = later(|| unsafe { sender.send(buffer(bytes)) })?;
    later(|| sender.test(request)).map(drop)
}

fn receive_one(receiver: &mut dyn NetReceiver, bytes: &mut [u8]) -> Result<(), String> {
    // SAFETY: as above.
    let request = later(|| unsafe { receiver.receive(buffer(bytes)) })?;
    later(|| receiver.test(request)).map(drop)
}

/// The end that measures.
struct Sender {
    folder: PathBuf,
    seconds: u32,
    encrypted_by: Option<u128>,
}

impl Sender {
    fn run(&self) -> Result<(), String> {
        let plain = plain_trip()?;
        println!("plain TCP, 8 bytes: {plain:.1} us");
        let trip = self.trip()?;
        println!("network, 8 bytes: {trip:.1} us, {:.2} of plain TCP", trip / plain);
        for (connections, streams) in WAYS {
            let rate = self.rate(connections, streams)?;
            println!("network, {connections} connections of {streams} streams: {rate:.2} GB/s");
        }
        Ok(())
    }

    /// Microseconds of half a round trip.
    fn trip(&self) -> Result<f64, String> {
        let network = open(2, 1, self.encrypted_by)?;
        let mut out = sender(&network, &self.folder, "trip")?;
        let mut back = receiver(&network, &self.folder, "trip-back")?;
        let mut bytes = [1u8; 8];
        let mut best = f64::MAX;
        for _ in 0..10 {
            let start = Instant::now();
            for _ in 0..TRIPS {
                send_one(&mut *out, &mut bytes)?;
                receive_one(&mut *back, &mut bytes)?;
            }
            best = best.min(start.elapsed().as_secs_f64() * 1e6 / f64::from(2 * TRIPS));
        }
        bytes[0] = 0;
        send_one(&mut *out, &mut bytes)?;
        later(|| Ok(out.is_delivered().then_some(())))?;
        Ok(best)
    }

    /// GB/s one way.
    fn rate(&self, connections: usize, streams: u32) -> Result<f64, String> {
        let network = open(2, streams, self.encrypted_by)?;
        let names = (0..connections).map(|number| format!("rate-{connections}-{streams}-{number}"));
        let mut senders: Vec<_> = names.map(|name| sender(&network, &self.folder, &name)).collect::<Result<_, _>>()?;
        let mut data = vec![1u8; LARGE];
        let (start, mut sent, mut under_way) = (Instant::now(), 0u64, vec![Vec::new(); connections]);
        let until = start + Duration::from_secs(u64::from(self.seconds));
        loop {
            let goes_on = Instant::now() < until;
            for (sender, requests) in senders.iter_mut().zip(&mut under_way) {
                while goes_on && requests.len() < DEPTH {
                    // SAFETY: the data lives until all requests are done, and nobody writes it.
                    let begun = unsafe { sender.send(buffer(&mut data)) }.map_err(|error| error.to_string())?;
                    let Some(request) = begun else { break };
                    requests.push(request);
                }
                if let Some(request) = requests.first()
                    && sender.test(*request).map_err(|error| error.to_string())?.is_some()
                {
                    requests.remove(0);
                    sent += LARGE as u64;
                }
            }
            if !goes_on && under_way.iter().all(Vec::is_empty) {
                break;
            }
        }
        for sender in &mut senders {
            send_one(&mut **sender, &mut [0; 1])?;
            later(|| Ok(sender.is_delivered().then_some(())))?;
        }
        Ok(sent as f64 / start.elapsed().as_secs_f64() / 1e9)
    }
}

/// The other end: takes whatever comes.
fn receive(folder: &Path, encrypted_by: Option<u128>) -> Result<(), String> {
    let plain = std::thread::spawn(answer_plain);
    let network = open(1, 1, encrypted_by)?;
    let mut from = receiver(&network, folder, "trip")?;
    let mut back = sender(&network, folder, "trip-back")?;
    let mut bytes = [1u8; 8];
    while bytes[0] != 0 {
        receive_one(&mut *from, &mut bytes)?;
        send_one(&mut *back, &mut bytes)?;
    }
    drop((from, back, network));
    let _ = plain.join();
    for (connections, streams) in WAYS {
        take(folder, connections, streams, encrypted_by)?;
    }
    Ok(())
}

/// Takes messages of some connections until each has sent a short one.
fn take(folder: &Path, connections: usize, streams: u32, encrypted_by: Option<u128>) -> Result<(), String> {
    let network = open(1, streams, encrypted_by)?;
    let names = (0..connections).map(|number| format!("rate-{connections}-{streams}-{number}"));
    let mut listeners = Vec::new();
    for name in names {
        let listener = network.listen(0).map_err(|error| error.to_string())?;
        write(folder, &name, listener.handle())?;
        listeners.push(listener);
    }
    let accept = |listener: &mut Box<dyn nccl::plugin::network::NetListener>| later(|| listener.accept());
    let mut receivers: Vec<_> = listeners.iter_mut().map(accept).collect::<Result<_, _>>()?;
    let mut places: Vec<Vec<u8>> = vec![vec![0; LARGE]; connections];
    let mut under_way = vec![Vec::new(); connections];
    let mut open = connections;
    while open > 0 {
        for ((receiver, place), requests) in receivers.iter_mut().zip(&mut places).zip(&mut under_way) {
            while requests.len() < DEPTH {
                // SAFETY: messages of a connection are written one after the other; what they say is not looked at.
                let begun = unsafe { receiver.receive(buffer(place)) }.map_err(|error| error.to_string())?;
                let Some(request) = begun else { break };
                requests.push(request);
            }
            match requests.first().map(|request| receiver.test(*request)) {
                Some(Ok(Some(1))) => open -= 1,
                Some(Ok(Some(_))) => drop(requests.remove(0)),
                Some(Err(error)) if open == connections => return Err(error.to_string()),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Microseconds of half a round trip over a connection whose ends wait.
fn plain_trip() -> Result<f64, String> {
    let until = Instant::now() + LIMIT;
    let mut stream = loop {
        match TcpStream::connect(SocketAddr::new(address(1), PORTS.0)) {
            Ok(stream) => break stream,
            Err(error) if Instant::now() > until => return Err(error.to_string()),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let trip = |stream: &mut TcpStream| -> std::io::Result<f64> {
        let (start, mut bytes) = (Instant::now(), [1u8; 8]);
        for _ in 0..TRIPS {
            stream.write_all(&bytes)?;
            stream.read_exact(&mut bytes)?;
        }
        Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(2 * TRIPS))
    };
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let mut best = f64::MAX;
    for _ in 0..10 {
        best = best.min(trip(&mut stream).map_err(|error| error.to_string())?);
    }
    Ok(best)
}

fn answer_plain() -> std::io::Result<()> {
    let (mut stream, _) = TcpListener::bind(SocketAddr::new(address(1), PORTS.0))?.accept()?;
    stream.set_nodelay(true)?;
    let mut bytes = [0; 8];
    while stream.read_exact(&mut bytes).is_ok() {
        stream.write_all(&bytes)?;
    }
    Ok(())
}
