//! Processes that share no mailboxes: event loops of one process, joined by TCP alone.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use super::super::event_loop::EventLoops;
use super::super::frame::{Hello, TcpFrame};
use super::super::stream::ConnectingStream;
use super::super::tcp::{HELLO_LIMIT, QUEUE_MAX, STRANGERS_MAX, Tcp};
use super::*;
use crate::error::Error;
use crate::secure::{HandshakeProgress, SecureHandshake, Session};
use crate::sys::Poller;

/// A process with one source.
struct Process {
    loops: Arc<EventLoops>,
    listener: Arc<RecordingSource>,
    registration: Registration,
    address: Address,
    location: Location,
}

fn localhost() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn join_in(loops: &Arc<EventLoops>, source: &Arc<impl Source + 'static>, address: Address) -> Registration {
    let source: Arc<dyn Source> = source.clone();
    loops.join(address, Arc::downgrade(&source)).expect("an event loop")
}

fn process(rank: u32) -> Process {
    let (loops, listener, address) = (Arc::new(EventLoops::new()), Arc::new(RecordingSource::default()), address(rank));
    let registration = join_in(&loops, &listener, address);
    let location = registration.listen(localhost()).expect("a listener");
    Process { loops, listener, registration, address, location }
}

impl Process {
    /// A message to it from elsewhere.
    fn message(&self, bytes: &[u8]) -> Message {
        Message::new(self.location.destination(false), self.address, bytes.to_vec(), None)
    }

    fn tcp(&self) -> TcpAddress {
        self.location.tcp.expect("it listens")
    }

    fn numbers(&self) -> Vec<u32> {
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes[..4].try_into().expect("a number"));
        self.listener.messages.lock().iter().map(|(_, bytes, _)| number(bytes)).collect()
    }

    fn lost(&self) -> Vec<(Address, Undeliverable)> {
        self.listener.lost.lock().clone()
    }
}

/// A listener whose connections the test serves by hand.
struct RawPeer {
    listener: TcpListener,
    address: Address,
}

const KEY: u128 = 77;

impl RawPeer {
    fn open() -> RawPeer {
        RawPeer { listener: TcpListener::bind(localhost()).expect("a listener"), address: address(9) }
    }

    fn tcp(&self) -> TcpAddress {
        TcpAddress::new(self.listener.local_addr().expect("an address"), KEY, false)
    }

    fn message(&self, bytes: &[u8]) -> Message {
        Message::new(Destination::Tcp(self.tcp()), self.address, bytes.to_vec(), None)
    }

    fn sockets(&self) -> usize {
        sockets(self.listener.local_addr().expect("an address").port())
    }

    /// A connection that somebody has made for messages, and that was not answered.
    fn accept(&self) -> RawConnection {
        self.listener.set_nonblocking(true).expect("a mode");
        let mut accepted = None;
        until("a connection", || {
            accepted = self.listener.accept().ok();
            accepted.is_some()
        });
        let (mut stream, _) = accepted.expect("a connection");
        stream.set_nonblocking(false).expect("a mode");
        let mut bytes = [0; 4];
        stream.set_read_timeout(Some(LIMIT)).expect("a limit");
        stream.read_exact(&mut bytes).expect("a hello");
        assert_eq!(bytes[..], Hello::Messages.encode());
        RawConnection::new(stream, self.tcp().handshake(Hello::Messages, false))
    }
}

/// A connection for messages that the test serves by hand.
struct RawConnection {
    stream: TcpStream,
    handshake: SecureHandshake,
    session: Option<Box<Session>>,
    plain: Vec<u8>,
}

impl RawConnection {
    fn new(stream: TcpStream, handshake: SecureHandshake) -> RawConnection {
        stream.set_read_timeout(Some(LIMIT)).expect("a limit");
        stream.set_nodelay(true).expect("no delay");
        RawConnection { stream, handshake, session: None, plain: Vec::new() }
    }

    /// Connects, and meets who listens.
    fn connect(to: TcpAddress) -> RawConnection {
        let mut stream = TcpStream::connect(to.socket()).expect("a connection");
        stream.write_all(&Hello::Messages.encode()).expect("written");
        let mut connection = RawConnection::new(stream, to.handshake(Hello::Messages, true));
        connection.meet();
        connection
    }

    /// The handshake, on either side.
    fn meet(&mut self) {
        while self.session.is_none() {
            self.stream.write_all(&self.handshake.output()).expect("written");
            let mut bytes = vec![0; self.handshake.missing()];
            self.stream.read_exact(&mut bytes).expect("a part of the handshake");
            match self.handshake.receive(&mut &bytes[..]).expect("no stranger") {
                HandshakeProgress::More => {}
                HandshakeProgress::Met(session) => self.session = session,
            }
        }
        self.stream.write_all(&self.handshake.output()).expect("written");
    }

    fn seal(&mut self, plain: &[u8]) -> Vec<u8> {
        let mut records = Vec::new();
        self.session.as_mut().expect("they have met").seal_all(plain, &mut records).expect("sealed");
        records
    }

    fn send(&mut self, plain: &[u8]) {
        let records = self.seal(plain);
        self.stream.write_all(&records).expect("written");
    }

    /// Sends bytes that are no record.
    fn raw(mut self, bytes: &[u8]) -> TcpStream {
        self.stream.write_all(bytes).expect("written");
        self.stream
    }

    /// Says that a message was taken.
    fn take(&mut self) {
        self.send(&[0; 4]);
    }

    /// The next bytes that the other side has sealed.
    fn read(&mut self, bytes: usize) -> Vec<u8> {
        while self.plain.len() < bytes {
            let mut length = [0; 2];
            self.stream.read_exact(&mut length).expect("a record");
            let mut record = [&length[..], &vec![0; usize::from(u16::from_le_bytes(length))]].concat();
            self.stream.read_exact(&mut record[2..]).expect("a record");
            let session = self.session.as_mut().expect("they have met");
            session.open_all(&mut record, &mut self.plain).expect("it opens");
        }
        self.plain.drain(..bytes).collect()
    }

    fn next_message(&mut self) -> Vec<u8> {
        let length = self.read(4).try_into().expect("four bytes");
        let bytes = self.read(u32::from_le_bytes(length) as usize);
        Message::decode(&bytes, 0).expect("a message").bytes().to_vec()
    }
}

/// Whether the other side has closed a connection.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(1))).expect("a limit");
    match stream.read(&mut [0; 64]) {
        Ok(n) => n == 0,
        Err(error) => !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
    }
}

/// The same, whatever it has said before.
fn is_over(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(1))).expect("a limit");
    match stream.read(&mut [0; 256]) {
        Ok(n) => n == 0,
        Err(error) => !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
    }
}

/// Sockets of this host at a port that somebody has open.
fn sockets(port: u16) -> usize {
    let port = format!(":{port:04X}");
    let table = std::fs::read_to_string("/proc/net/tcp").expect("sockets");
    let open = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields[1].ends_with(&port) || fields[2].ends_with(&port)) && fields[9] != "0"
    };
    table.lines().skip(1).filter(open).count()
}

#[test]
fn messages_go_from_process_to_process_in_order_and_back() {
    const COUNT: u32 = 20_000;
    let _turn = TURN.lock();
    let (here, there) = (process(0), process(1));
    for first in (0..COUNT).step_by(1000) {
        here.registration.send((first..first + 1000).map(|number| there.message(&number.to_be_bytes())));
    }
    there.registration.send((0..COUNT).map(|number| here.message(&number.to_be_bytes())));
    until("all messages", || there.listener.messages.lock().len() == COUNT as usize);
    until("all messages", || here.listener.messages.lock().len() == COUNT as usize);
    assert!(there.numbers().into_iter().eq(0..COUNT) && here.numbers().into_iter().eq(0..COUNT));
    assert!(here.lost().is_empty() && there.lost().is_empty());
    // An answer goes back over the connection, and to where the sender receives.
    here.registration.send([there.message(b"?answer")]);
    until("an answer", || here.listener.messages.lock().last().is_some_and(|last| last.1 == b"answer"));
    assert_eq!(here.listener.messages.lock().last().map(|last| last.0), Some(there.address));
    // Two connections, one for each direction, with two ends each, and two listeners.
    let ports = [here.tcp().socket().port(), there.tcp().socket().port()];
    assert_eq!(ports.map(sockets), [3, 3]);
    drop((here, there));
    assert_eq!(ports.map(sockets), [0, 0]);
    assert_eq!(helpers(), 0);
}

/// A process reaches itself by TCP, too, and who does not listen can send and hears answers.
#[test]
fn who_does_not_listen_can_send_and_is_answered() {
    let _turn = TURN.lock();
    let there = process(1);
    there.registration.send([there.message(b"self")]);
    until("a message to itself", || !there.listener.messages.lock().is_empty());
    let (loops, own) = (Arc::new(EventLoops::new()), Arc::new(RecordingSource::default()));
    let registration = join_in(&loops, &own, address(0));
    assert_eq!(registration.location().tcp, None);
    registration.send([there.message(b"?x")]);
    until("an answer", || own.messages.lock().len() == 1);
    let nobody = Address { rank: 5, ..address(5) };
    registration.send([Message { to: nobody, ..there.message(b"x") }]);
    until("the news", || !own.lost.lock().is_empty());
    assert_eq!(*own.lost.lock(), [(nobody, Undeliverable::NoSource)]);
}

/// A stream to a source, once its ends have met; none where they do not.
fn stream_to(to: TcpAddress, source: Address, token: u64) -> Option<SecureStream> {
    let tcp = crate::sys::TcpStream::connect(to.socket()).expect("a connection");
    let mut connecting: ConnectingStream = to.stream(tcp, source, token);
    let mut met = Ok(false);
    until("the end of the handshake", || {
        met = connecting.progress();
        !matches!(met, Ok(false))
    });
    met.ok().and_then(|_| connecting.finish())
}

/// A source takes over what somebody has connected for it, in plain or sealed; what follows is untouched.
#[test]
fn streams_go_to_their_source() {
    const BYTES: usize = 1 << 20;
    let _turn = TURN.lock();
    let (there, nobody) = (process(1), address(5));
    let wanted = ListenAddress { encrypted_by: Some(7), ..localhost().into() };
    let sealed = there.registration.listen(wanted).expect("another listener").tcp.expect("it listens");
    assert_ne!(sealed, there.tcp());
    assert_eq!(there.registration.listen(wanted).expect("the same").tcp, Some(sealed));
    for (to, is_sealed) in [(there.tcp(), false), (sealed, true)] {
        let mut own = stream_to(to, there.address, 7).expect("a stream");
        until("the stream", || !there.listener.streams.lock().is_empty());
        let (token, mut theirs) = there.listener.streams.lock().pop().expect("a stream");
        assert_eq!((token, own.is_sealed(), theirs.is_sealed()), (7, is_sealed, is_sealed));
        let data: Vec<u8> = (0..BYTES).map(|i| ((i * 31) >> 3) as u8).collect();
        let (mut got, mut sent, mut place) = (Vec::new(), 0, vec![0; 100_000]);
        until("data", || {
            let (head, rest) = if sent == 0 { data.split_at(8) } else { (&[][..], &data[sent..]) };
            if !rest.is_empty() {
                sent += own.send_parts(head, rest).expect("sent");
            }
            let flushed = own.flush().expect("sent");
            let room = 1 + got.len() * 7 % place.len();
            while let Some(read) = theirs.receive(&mut place[..room]).expect("received") {
                got.extend_from_slice(&place[..read]);
            }
            got.len() == BYTES && flushed && !theirs.is_buffered()
        });
        assert!(got == data);
        assert_eq!(theirs.send_parts(b"ba", b"ck").expect("sent"), 4);
        let mut answer = [0; 9];
        until("an answer", || own.receive(&mut answer).expect("received") == Some(4));
        assert!(answer.starts_with(b"back"));
        drop(own);
        until("the end", || theirs.receive(&mut answer).is_ok_and(|read| read == Some(0)));
        // Of no source: the ends meet, and the stream is closed. With another key they do not.
        let nobodys = stream_to(to, nobody, 7).expect("a stream");
        until("the end", || nobodys.tcp().receive(&mut answer).map_or(true, |read| read == Some(0)));
        assert!(stream_to(TcpAddress::new(to.socket(), KEY, is_sealed), there.address, 7).is_none());
        // Nor where they do not agree on the seal: there is no plain stream to a listener whose data are sealed.
        assert!(stream_to(to.with_sealed(!is_sealed), there.address, 7).is_none());
        assert!(there.listener.streams.lock().is_empty());
    }
}

#[test]
fn a_process_listens_once_at_an_address() {
    let _turn = TURN.lock();
    let first = process(0);
    let second = join_in(&first.loops, &first.listener, address(1));
    assert_eq!(second.location().tcp, None);
    assert_eq!(second.listen(localhost()), Ok(first.location));
    let ports = Some((47_121, 47_122));
    let advertise = Some(SocketAddr::from(([198, 51, 100, 7], 0)));
    let at = SocketAddr::from(([127, 0, 0, 3], 0));
    let told = second.listen(ListenAddress { at, ports, advertise, encrypted_by: None }).expect("a port is left");
    assert_eq!(second.listen(at), Ok(told));
    let told = told.tcp.expect("it listens").socket();
    assert!(told.ip().to_string() == "198.51.100.7" && (47_121..=47_122).contains(&told.port()), "{told}");
    let other = second.listen(SocketAddr::from(([127, 0, 0, 2], 0))).expect("another address");
    assert!(other.tcp != first.location.tcp && other == second.location());
    assert_eq!(first.registration.location(), first.location);
    let error = second.listen(SocketAddr::from(([192, 0, 2, 1], 0))).expect_err("no address of this host");
    assert!(error.to_string().contains("192.0.2.1"), "{error}");
}

#[test]
fn a_descriptor_cannot_go_by_tcp() {
    let _turn = TURN.lock();
    let (here, there) = (process(0), process(1));
    let fd = SharedFile::create("test", 4096).expect("memory").into_descriptor();
    here.registration
        .send([Message { fd: Some(Arc::new(fd)), ..there.message(b"x") }, there.message(&[1; MESSAGE_MAX])]);
    until("the news", || here.lost().len() == 2);
    for (part, (to, why)) in
        ["file descriptor, which cannot go by TCP", &format!("more than {MESSAGE_MAX}")].iter().zip(here.lost())
    {
        let Undeliverable::Failed(Error::Internal(text)) = why else { panic!("{why:?}") };
        assert!(to == there.address && text.contains(part), "{text}");
    }
}

/// Holds the thread up at its first message, until it may go on.
#[derive(Default)]
struct Stuck {
    held: Mutex<()>,
    messages: Mutex<Vec<u32>>,
}

impl Source for Stuck {
    fn receive(&self, message: Message, _: &mut Outbox) {
        let _held = self.held.lock();
        self.messages.lock().push(u32::from_be_bytes(message.bytes()[..4].try_into().expect("a number")));
    }

    fn undeliverable(&self, _: Address, _: Undeliverable) {}

    fn progress(&self, _: Instant, _: &mut Outbox) -> Progress {
        Progress::default()
    }
}

/// A process that does not read takes what the system and the queue hold; the rest is refused, and told. What was
/// taken arrives in order, and others are not held up.
#[test]
fn a_process_that_does_not_read_holds_up_nobody_and_takes_no_memory_without_end() {
    const BYTES: usize = 900;
    let _turn = TURN.lock();
    let (here, other) = (process(0), process(1));
    let (loops, stuck, place) = (Arc::new(EventLoops::new()), Arc::new(Stuck::default()), address(2));
    let registration = join_in(&loops, &stuck, place);
    let to = registration.listen(localhost()).expect("a listener").destination(false);
    let held = stuck.held.lock();
    let message = |number: u32| {
        let mut bytes = vec![0; BYTES];
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        Message::new(to, place, bytes, None)
    };
    let mut sent = 0;
    while here.listener.lost.lock().is_empty() {
        here.registration.send((sent..sent + 500).map(message));
        sent += 500;
        std::thread::yield_now();
        assert!(sent < 200_000, "nothing is refused");
    }
    assert!(sent as usize * BYTES > QUEUE_MAX);
    here.registration.send([other.message(b"x")]);
    until("a message to another process", || other.listener.messages.lock().len() == 1);
    let refused = here.lost();
    assert!(refused.iter().all(|(to, why)| *to == place && matches!(why, Undeliverable::Failed(Error::Resource(_)))));
    drop(held);
    let taken = sent as usize - refused.len();
    until("what was taken", || stuck.messages.lock().len() == taken);
    let messages = stuck.messages.lock().clone();
    assert!(messages.is_sorted() && messages.windows(2).all(|pair| pair[0] < pair[1]));
    here.registration.send([message(sent)]);
    until("one more", || stuck.messages.lock().last() == Some(&sent));
    drop((here, other, registration));
    assert_eq!(helpers(), 0);
}

#[test]
fn the_end_of_a_source_and_of_its_process_are_told() {
    let _turn = TURN.lock();
    let (here, there) = (process(0), process(1));
    let neighbour = join_in(&there.loops, &there.listener, address(2));
    here.registration.send([there.message(b"x")]);
    until("a message", || there.listener.messages.lock().len() == 1);
    let (message, to) = (there.message(b"y"), there.address);
    drop(there.registration);
    here.registration.send([message.clone()]);
    until("the news", || here.lost().len() == 1);
    drop(neighbour);
    here.registration.send([message.clone()]);
    until("the news", || here.lost().len() == 2);
    here.registration.send([message]);
    until("the news", || here.lost().len() == 3);
    assert_eq!(here.lost(), [(to, Undeliverable::NoSource), (to, Undeliverable::Died), (to, Undeliverable::Died)]);
}

/// A process dies with messages that it has not taken: that is told, and only of them.
#[test]
fn a_process_that_dies_is_told_once() {
    let _turn = TURN.lock();
    let (here, peer) = (process(0), RawPeer::open());
    here.registration.send([peer.message(b"one"), peer.message(b"two"), peer.message(b"three")]);
    let mut stream = peer.accept();
    stream.meet();
    assert_eq!(stream.next_message(), b"one");
    assert_eq!(here.lost(), []);
    drop(stream);
    until("the news", || here.lost().len() == 1);
    assert_eq!(here.lost(), [(peer.address, Undeliverable::Died)]);
    // It lives after all: there is another connection, and another end, with nothing left to be told.
    here.registration.send([peer.message(b"four")]);
    let mut stream = peer.accept();
    stream.meet();
    assert_eq!(stream.next_message(), b"four");
    stream.take();
    drop(stream);
    until("the end of the connection", || peer.sockets() == 1);
    here.registration.send([peer.message(b"five")]);
    let mut stream = peer.accept();
    stream.meet();
    assert_eq!(stream.next_message(), b"five");
    stream.take();
    assert_eq!(here.lost().len(), 1);
}

/// Who closes before the ends have met is tried again, and gets each message once.
#[test]
fn a_connection_that_fails_is_tried_again() {
    let _turn = TURN.lock();
    let (here, peer) = (process(0), RawPeer::open());
    here.registration.send([peer.message(b"one"), peer.message(b"two")]);
    for _ in 0..4 {
        drop(peer.accept());
    }
    let mut stream = peer.accept();
    stream.meet();
    assert_eq!([stream.next_message(), stream.next_message()], [b"one".to_vec(), b"two".to_vec()]);
    stream.send(&[0; 8]);
    assert_eq!(here.lost(), []);
}

/// Nobody listens any more: that is told after a while, for all messages.
#[test]
fn a_process_that_is_gone_is_told() {
    let _turn = TURN.lock();
    let (here, peer) = (process(0), RawPeer::open());
    let messages: Vec<Message> = (0..100u8).map(|number| peer.message(&[number])).collect();
    let other = Message { to: address(8), ..peer.message(b"other") };
    let expected = [other.to, peer.address].map(|to| (to, Undeliverable::Died));
    drop(peer);
    here.registration.send(messages);
    here.registration.send([other]);
    until("the news", || here.lost().len() == 2);
    assert!(expected.iter().all(|one| here.lost().contains(one)));
}

/// Strangers write nonsense, stop in the middle, or say nothing: they are closed, and nobody else is held up.
#[test]
fn strangers_are_closed_and_hold_up_nobody() {
    let _turn = TURN.lock();
    let (here, there) = (process(0), process(1));
    let to = there.tcp();
    let connect = || TcpStream::connect(to.socket()).expect("a connection");
    let with = |bytes: &[u8]| {
        let mut stream = connect();
        stream.write_all(bytes).expect("written");
        stream
    };
    let first = |to: TcpAddress| [Hello::Messages.encode(), to.handshake(Hello::Messages, true).output()].concat();
    let known = |plain: &[u8]| {
        let mut connection = RawConnection::connect(to);
        connection.send(plain);
        connection.stream
    };
    let mut closed = [
        with(b"GET / HTTP/1.1\r\n\r\n"),
        with(&[0; 20]),
        with(&first(TcpAddress::new(to.socket(), KEY, false))),
        with(&[255; 5000]),
        with(&[Hello::Messages.encode(), vec![1; 200]].concat()),
        with(&[first(to), vec![1; 48]].concat()),
        // Who knows the key, but not the rest.
        known(&(MESSAGE_MAX as u32 + 1).to_le_bytes()),
        known(&[0, 0, 0, 0]),
        known(&[3, 0, 0, 0, 9, 9, 9]),
        RawConnection::connect(to).raw(&[&[40, 0][..], &[7; 40]].concat()),
    ];
    // What the listener has answered is read before its end.
    closed.iter_mut().for_each(|stream| until("its end", || is_over(stream)));
    let hello = first(to);
    let mut slow = [connect(), with(&hello[..3]), with(&hello[..70]), with(&hello)];
    here.registration.send([there.message(&7u32.to_be_bytes())]);
    until("a message", || there.numbers() == [7]);
    assert!(HELLO_LIMIT < LIMIT);
    slow.iter_mut().for_each(|stream| until("its end", || is_over(stream)));
    assert!(there.lost().is_empty() && here.lost().is_empty());
}

/// A thousand connections that say nothing: few are kept, and messages arrive meanwhile.
#[test]
fn a_flood_of_strangers_is_kept_small() {
    let _turn = TURN.lock();
    let (here, there) = (process(0), process(1));
    let to = there.tcp().socket();
    let mut kept = VecDeque::new();
    for number in 0..1000u32 {
        kept.push_back(TcpStream::connect(to).expect("a connection"));
        if kept.len() > STRANGERS_MAX + 40 {
            let oldest = kept.pop_front();
            oldest.into_iter().for_each(|mut oldest| until("its end", || is_closed(&mut oldest)));
        }
        if number % 100 == 0 {
            here.registration.send([there.message(&(number / 100).to_be_bytes())]);
        }
    }
    until("all messages", || there.numbers().len() == 10);
    assert!(there.numbers().into_iter().eq(0..10) && here.lost().is_empty());
    drop(there);
    kept.iter_mut().for_each(|stream| until("its end", || is_closed(stream)));
}

/// What a process has sent before its last source ends arrives.
#[test]
fn the_last_messages_arrive() {
    const COUNT: u32 = 3000;
    let _turn = TURN.lock();
    let there = process(1);
    for round in 1..=10 {
        let here = process(0);
        here.registration.send((0..COUNT).map(|number| there.message(&number.to_be_bytes())));
        drop(here);
        assert_eq!(helpers(), 1);
        until("the last messages", || there.numbers().len() == (COUNT * round) as usize);
    }
    assert!(there.numbers().chunks(COUNT as usize).all(|numbers| numbers.iter().copied().eq(0..COUNT)));
}

/// Who never takes the key does not hold up the end for long.
#[test]
fn the_end_waits_for_nobody_without_end() {
    let _turn = TURN.lock();
    let (here, peer) = (process(0), RawPeer::open());
    here.registration.send([peer.message(b"x")]);
    let mut stream = peer.accept();
    let start = Instant::now();
    drop(here);
    assert!(start.elapsed() < LIMIT);
    until("the end of the thread", || helpers() == 0);
    until("the end of the connection", || is_over(&mut stream.stream));
}

/// Ends its own registration, the last one, when a message comes.
#[derive(Default)]
struct Ender(Mutex<Option<Registration>>);

impl Source for Ender {
    fn receive(&self, message: Message, out: &mut Outbox) {
        out.add(Message::new(message.destination, message.from, b"bye".to_vec(), None));
        let registration = self.0.lock().take();
        drop(registration);
    }

    fn undeliverable(&self, _: Address, _: Undeliverable) {}

    fn progress(&self, _: Instant, _: &mut Outbox) -> Progress {
        Progress::default()
    }
}

#[test]
fn the_last_source_may_end_in_the_thread() {
    let _turn = TURN.lock();
    let here = process(0);
    let (loops, ender, place) = (Arc::new(EventLoops::new()), Arc::new(Ender::default()), address(1));
    let registration = join_in(&loops, &ender, place);
    let tcp = registration.listen(localhost()).expect("a listener").tcp.expect("it listens");
    *ender.0.lock() = Some(registration);
    here.registration.send([Message::new(Destination::Tcp(tcp), place, b"x".to_vec(), None)]);
    until("the last message", || here.listener.messages.lock().len() == 1);
    until("the end of the thread", || helpers() == 1);
    until("the end of its sockets", || sockets(tcp.socket().port()) == 0);
    assert_eq!(here.lost(), []);
}

/// The oldest strangers go before more of them are kept than there may be.
#[test]
fn so_many_strangers_are_kept_and_no_more() {
    let mailbox = Mailbox::open().expect("a mailbox");
    let (poller, mut tcp, mut lost) = (Poller::open(&mailbox).expect("a poller"), Tcp::default(), Vec::new());
    let listener = Arc::new(super::super::tcp::KeyedListener::open(localhost().into(), KEY, 0).expect("a listener"));
    let mut streams: Vec<TcpStream> = Vec::new();
    for number in 0..STRANGERS_MAX + 20 {
        streams.push(TcpStream::connect(listener.address.socket()).expect("a connection"));
        until("the connection", || {
            tcp.accept(&listener, &poller, &mut lost);
            tcp.connections() == STRANGERS_MAX || tcp.connections() > number
        });
        assert!(tcp.connections() <= STRANGERS_MAX);
    }
    until("the end of the oldest", || {
        tcp.accept(&listener, &poller, &mut lost);
        streams[..19].iter_mut().all(is_closed)
    });
    assert!(!is_closed(&mut streams[STRANGERS_MAX]) && lost.is_empty());
}

/// Half a frame waits for its other half, byte by byte.
#[test]
fn a_frame_may_come_in_pieces() {
    let _turn = TURN.lock();
    let there = process(1);
    let (mut connection, mut bytes) = (RawConnection::connect(there.tcp()), VecDeque::new());
    for number in 0..3u32 {
        TcpFrame::write(&there.message(&number.to_be_bytes()).encode(), &mut bytes);
    }
    for byte in connection.seal(bytes.make_contiguous()) {
        connection.stream.write_all(&[byte]).expect("written");
    }
    until("all messages", || there.numbers() == [0, 1, 2]);
    // Each message was taken.
    assert_eq!(connection.read(12), [0; 12]);
}

/// Who could not be heard since this process was stopped has its time again; who then says nothing has not.
#[test]
fn nobody_is_late_where_this_process_was_stopped() {
    let mailbox = Mailbox::open().expect("a mailbox");
    let (poller, mut tcp, mut lost) = (Poller::open(&mailbox).expect("a poller"), Tcp::default(), Vec::new());
    let listener = Arc::new(super::super::tcp::KeyedListener::open(localhost().into(), KEY, 0).expect("a listener"));
    let _stream = TcpStream::connect(listener.address.socket()).expect("a connection");
    until("the connection", || {
        tcp.accept(&listener, &poller, &mut lost);
        tcp.connections() == 1
    });
    let limit = tcp.next().expect("a limit");
    tcp.send(&poller, limit + HELLO_LIMIT, &mut lost);
    assert_eq!(tcp.connections(), 1);
    let limit = tcp.next().expect("a limit");
    tcp.send(&poller, limit, &mut lost);
    assert_eq!(tcp.connections(), 0);
}
