use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::plugin::network::{NetBuffer, NetConnection, NetSender, RegionId};

const LIMIT: Duration = Duration::from_secs(20);

pub fn settings(streams: u32) -> SocketSettings {
    SocketSettings { threads: 1, streams: Some(streams), piece_min: 4096, buffers: (None, None), encrypted_by: None }
}

/// A network at an address of this host's own, for each of two ranks.
pub fn networks(streams: u32) -> [Arc<SocketNetwork>; 2] {
    networks_with(settings(streams))
}

fn networks_with(settings: SocketSettings) -> [Arc<SocketNetwork>; 2] {
    [0, 1].map(|rank| {
        let at = SocketInterface::unknown((Ipv4Addr::LOCALHOST, 0).into());
        SocketNetwork::open(rank, vec![at], settings).expect("a network")
    })
}

fn until<T>(mut get: impl FnMut() -> Option<T>) -> T {
    let limit = Instant::now() + LIMIT;
    loop {
        if let Some(value) = get() {
            return value;
        }
        assert!(Instant::now() < limit, "nothing comes");
        std::thread::yield_now();
    }
}

/// A connection of two networks.
pub fn connection(networks: &[Arc<SocketNetwork>; 2]) -> (Box<dyn NetSender>, Box<dyn NetReceiver>) {
    let mut listener = networks[1].listen(0).expect("a listener");
    let mut connecting = networks[0].connect(0, listener.handle()).expect("a begin");
    let sender = until(|| connecting.connect().expect("connect"));
    (sender, until(|| listener.accept().expect("accept")))
}

/// A sender that is perhaps not connected yet.
pub struct Connecting(Box<dyn NetConnecting>, Option<Box<dyn NetSender>>);

impl Connecting {
    pub fn connected(&mut self) -> Option<&mut Box<dyn NetSender>> {
        if self.1.is_none() {
            self.1 = self.0.connect().expect("connect");
        }
        self.1.as_mut()
    }
}

/// The ends of a connection that is not made yet.
pub fn connection_parts(networks: &[Arc<SocketNetwork>; 2]) -> (Connecting, Box<dyn NetListener>) {
    let listener = networks[1].listen(0).expect("a listener");
    let connecting = networks[0].connect(0, listener.handle()).expect("a begin");
    (Connecting(connecting, None), listener)
}

fn buffer(bytes: &mut [u8]) -> NetBuffer {
    NetBuffer { address: bytes.as_mut_ptr() as u64, bytes: bytes.len(), region: RegionId(0) }
}

fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|place| ((place + seed) * 31 + (place >> 8)) as u8).collect()
}

/// Sends messages of these sizes, as many at a time as the network takes, and receives them whole and in order.
fn send_all(networks: &[Arc<SocketNetwork>; 2], sizes: &[usize]) {
    let (mut sender, mut receiver) = connection(networks);
    let mut sent: Vec<Vec<u8>> = sizes.iter().enumerate().map(|(seed, bytes)| pattern(*bytes, seed)).collect();
    let mut got: Vec<Vec<u8>> = sizes.iter().map(|bytes| vec![0; bytes + 5]).collect();
    let (mut outgoing, mut incoming) = (VecDeque::new(), VecDeque::new());
    let (mut next_out, mut next_in, mut done) = (0, 0, 0);
    until(|| {
        while let Some(data) = sent.get_mut(next_out) {
            // SAFETY: the buffers stay where they are, and are not touched before all is done.
            let Some(request) = unsafe { sender.send(buffer(data)) }.expect("send") else { break };
            outgoing.push_back(request);
            next_out += 1;
        }
        while let Some(data) = got.get_mut(next_in) {
            // SAFETY: as above.
            let Some(request) = unsafe { receiver.receive(buffer(data)) }.expect("receive") else { break };
            incoming.push_back(request);
            next_in += 1;
        }
        while let Some(bytes) = outgoing.front().and_then(|request| sender.test(*request).expect("test")) {
            outgoing.pop_front();
            assert!(sizes.contains(&bytes));
        }
        while let Some(bytes) = incoming.front().and_then(|request| receiver.test(*request).expect("test")) {
            incoming.pop_front();
            assert_eq!(bytes, sizes[done]);
            done += 1;
        }
        (done == sizes.len() && outgoing.is_empty()).then_some(())
    });
    until(|| sender.is_delivered().then_some(()));
    for (sent, got) in sent.iter().zip(&got) {
        assert!(got.starts_with(sent), "{} bytes", sent.len());
    }
}

#[test]
fn messages_of_all_sizes_arrive_whole_and_in_order_over_any_number_of_streams() {
    let sizes = [0, 1, 8, 1023, 1024, 1025, 4095, 8192, 100_000, 3, 3_000_001, 0, 65_536, 7];
    for streams in [1, 2, 5, 64] {
        send_all(&networks(streams), &sizes.repeat(5));
        send_all(&networks_with(SocketSettings { encrypted_by: Some(9), ..settings(streams) }), &sizes.repeat(5));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn any_messages_arrive(
        sizes in prop::collection::vec(0usize..60_000, 1..80),
        streams in 1u32..6,
        encrypted_by: Option<u128>,
    ) {
        send_all(&networks_with(SocketSettings { encrypted_by, ..settings(streams) }), &sizes);
    }
}

#[test]
fn who_closes_is_noticed_at_the_other_end_after_what_it_has_sent() {
    let networks = networks(2);
    let (mut sender, mut receiver) = connection(&networks);
    let (mut data, mut place) = (pattern(50_000, 1), vec![0; 50_000]);
    // SAFETY: the buffers live until the end.
    let (out, into) = unsafe { (sender.send(buffer(&mut data)), receiver.receive(buffer(&mut place))) };
    let (out, into) = (out.expect("send").expect("room"), into.expect("receive").expect("room"));
    until(|| sender.test(out).expect("test"));
    drop(sender);
    assert_eq!(until(|| receiver.test(into).expect("test")), 50_000);
    assert_eq!(place, data);
    // SAFETY: as above.
    let into = unsafe { receiver.receive(buffer(&mut place)) }.expect("receive").expect("room");
    let error = until(|| receiver.test(into).err());
    assert!(error.to_string().contains("127.0.0.1") && error.to_string().contains("closed"), "{error}");
    let (mut sender, receiver) = connection(&networks);
    drop(receiver);
    let ready = crate::sys::Ready { token: 0, readable: true, writable: false };
    let error = until(|| sender.ready(0, ready).err());
    assert!(error.to_string().contains("closed"), "{error}");
}

#[test]
fn what_is_longer_than_there_is_room_for_or_no_message_is_refused() {
    let networks = networks(1);
    let (mut sender, mut receiver) = connection(&networks);
    let (mut data, mut place) = (pattern(101, 1), vec![0; 100]);
    // SAFETY: the buffers live until the end.
    let (_, into) = unsafe { (sender.send(buffer(&mut data)), receiver.receive(buffer(&mut place))) };
    let error = until(|| receiver.test(into.clone().expect("receive").expect("room")).err());
    assert!(error.to_string().contains("a message of 101 bytes was sent where 100 were expected"), "{error}");
}

#[test]
fn a_handle_that_is_none_is_refused() {
    let [network, other] = networks(1);
    let handle = other.listen(0).expect("a listener").handle().to_vec();
    for handle in [&handle[..handle.len() - 1], &[], &[255; 100], &[0; 2000]] {
        assert!(matches!(network.connect(0, handle), Err(Error::Remote { .. })));
    }
    // Nobody waits for it any more: who connects is closed.
    let mut connecting = network.connect(0, &handle).expect("a begin");
    let mut sender = until(|| connecting.connect().expect("connect"));
    let ready = crate::sys::Ready { token: 0, readable: true, writable: false };
    until(|| sender.ready(0, ready).err());
}

proptest! {
    #[test]
    fn any_handle_is_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let decoded = postcard::from_bytes::<SocketHandle>(&bytes);
        prop_assert!(decoded.is_err() || decoded.is_ok_and(|handle| handle.at.len() <= bytes.len()));
    }
}

#[test]
fn fast_interfaces_share_the_data() {
    let interfaces = |speeds: &[u32]| {
        let one = |(number, speed): (usize, &u32)| {
            let mut one = SocketInterface::unknown((Ipv4Addr::new(10, 0, number as u8, 1), 0).into());
            one.properties.speed = *speed;
            one
        };
        speeds.iter().enumerate().map(one).collect::<Vec<_>>()
    };
    let order = |speeds: &[u32]| {
        let mut all = interfaces(speeds);
        let fast = put_fast_first(&mut all);
        (fast, all.iter().map(|one| one.properties.speed).collect::<Vec<_>>())
    };
    assert_eq!(order(&[1000, 100_000, 50_000, 49_999]), (2, vec![100_000, 50_000, 1000, 49_999]));
    assert_eq!(order(&[SPEED, SPEED]), (2, vec![SPEED, SPEED]));
    assert_eq!(order(&[7]), (1, vec![7]));
}

/// A connection with several ways, whose streams are lost again and again.
struct LossyConnection {
    _networks: [Arc<SocketNetwork>; 2],
    sender: send::SocketSender,
    receiver: Box<dyn NetReceiver>,
}

impl LossyConnection {
    fn new(settings: SocketSettings) -> LossyConnection {
        let networks = [0, 1].map(|rank| {
            let at = [1, 2].map(|last| SocketInterface::unknown((Ipv4Addr::new(127, 0, 0, last), 0).into()));
            SocketNetwork::open(rank, at.to_vec(), settings).expect("a network")
        });
        let mut listener = networks[1].listen(0).expect("a listener");
        let mut connecting = networks[0].connecting(0, listener.handle()).expect("a begin");
        let mut sender = None;
        let receiver = until(|| {
            sender = sender.take().or_else(|| connecting.finish().expect("connect"));
            if sender.is_some() { listener.accept().expect("accept") } else { None }
        });
        LossyConnection { _networks: networks, sender: sender.expect("a sender"), receiver }
    }

    /// Sends messages; before the test of a number a stream is lost.
    fn send_all(&mut self, sizes: &[usize], losses: &[(usize, usize, bool)]) {
        let mut data: Vec<Vec<u8>> = sizes.iter().zip(0..).map(|(bytes, seed)| pattern(*bytes, seed)).collect();
        let mut places: Vec<Vec<u8>> = sizes.iter().map(|bytes| vec![0; *bytes]).collect();
        let (mut out, mut into, mut done, mut test) = (VecDeque::new(), VecDeque::new(), (0, 0), 0);
        let (mut sent, mut given) = (0, 0);
        let start = Instant::now();
        while done != (sizes.len(), sizes.len()) {
            assert!(start.elapsed() < LIMIT, "{done:?} of {} messages", sizes.len());
            // SAFETY: the buffers live until the end.
            unsafe {
                while sent < data.len() && out.len() < 8 {
                    out.push_back(self.sender.send(buffer(&mut data[sent])).expect("send").expect("room"));
                    sent += 1;
                }
                while given < places.len() && into.len() < 3 {
                    into.push_back(self.receiver.receive(buffer(&mut places[given])).expect("receive").expect("room"));
                    given += 1;
                }
            }
            for (_, stream, closed) in losses.iter().filter(|(at, ..)| *at == test) {
                self.sender.lose_stream(*stream, *closed);
            }
            test += 1;
            // As their event loops do.
            let ready = crate::sys::Ready { token: 0, readable: true, writable: true };
            for number in 0..self.sender.descriptors() {
                self.sender.ready(number, ready).expect("the sender goes on");
            }
            let bell = self.receiver.descriptors() - 1;
            self.receiver.ready(bell, ready).expect("the receiver goes on");
            let is_done = |end: &mut dyn NetConnection, requests: &mut VecDeque<_>| {
                let request = *requests.front()?;
                let bytes = end.test(request).expect("the connection goes on")?;
                requests.pop_front();
                Some(bytes)
            };
            done.0 += usize::from(is_done(&mut self.sender, &mut out).is_some());
            if let Some(bytes) = is_done(&mut *self.receiver, &mut into) {
                assert_eq!(bytes, sizes[done.1]);
                done.1 += 1;
            }
        }
        assert!(places == data, "what has come is not what was sent");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever stream is lost, and whether what it had under way still arrives: each message comes whole, and once.
    #[test]
    fn nothing_is_lost_or_comes_twice_where_streams_are_made_anew(
        sizes in prop::collection::vec(prop_oneof![0usize..300, 0usize..400_000], 1..60),
        streams in 1u32..4,
        losses in prop::collection::vec((0usize..400, 0usize..4, any::<bool>()), 1..12),
        encrypted_by: Option<u128>,
    ) {
        let settings = SocketSettings { encrypted_by, ..settings(streams) };
        let losses: Vec<_> = losses.into_iter().filter(|(_, stream, _)| *stream < streams as usize).collect();
        LossyConnection::new(settings).send_all(&sizes, &losses);
    }
}

#[test]
fn who_closes_is_noticed_where_streams_could_be_made_anew_too() {
    let mut lossy = LossyConnection::new(settings(2));
    lossy.send_all(&[100_000, 5], &[(0, 0, true), (3, 1, false)]);
    let LossyConnection { mut sender, mut receiver, .. } = lossy;
    let mut data = pattern(50, 1);
    // SAFETY: the buffer lives until the end.
    let into = unsafe { receiver.receive(buffer(&mut data)) }.expect("receive").expect("room");
    assert_eq!(receiver.test(into).expect("nothing has come"), None);
    sender.ready(0, crate::sys::Ready { token: 0, readable: true, writable: false }).expect("nothing has come");
    drop(sender);
    let error = until(|| receiver.test(into).err());
    assert!(error.to_string().contains("closed"), "{error}");
}
