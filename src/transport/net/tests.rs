use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use proptest::prelude::*;

use super::connection::{LinkMemory, MovedConnection};
use super::frame::{HEAD, MoverFrame};
use super::*;
use crate::plan::layout::SLOT_SIZE_UNIT;
use crate::sys::Ready;

/// One rank's part of one link: two counters, then slots.
struct LinkPart {
    segment: Arc<Mutex<HostSegment>>,
    memory: LinkMemory,
}

impl LinkPart {
    fn new(slot_bytes: u32) -> LinkPart {
        let bytes = PAGE + SLOTS * slot_bytes as usize;
        let segment = HostSegment::new(SharedMemory::anonymous(bytes).expect("memory"));
        let start = segment.host_address();
        let memory = LinkMemory { slots: start + PAGE as u64, posted: start, consumed: start + 64, slot_bytes };
        LinkPart { segment: Arc::new(Mutex::new(segment)), memory }
    }

    fn words(&self, address: u64, count: usize) -> &[AtomicU64] {
        // SAFETY: the memory lives as long as the part, and everybody takes it as atomics here.
        unsafe { std::slice::from_raw_parts(address as *const AtomicU64, count) }
    }

    /// A counter's value.
    fn value(&self, counter: u64) -> u64 {
        self.words(counter, 1)[0].load(Ordering::Acquire)
    }

    /// What a kernel does that sends: fills a slot with words of a number, and posts it.
    fn post(&self, number: u64, bytes: usize) {
        let (place, slot) =
            (number as usize % SLOTS, self.memory.slots + number % SLOTS as u64 * self.memory.slot_bytes as u64);
        self.words(slot, bytes / 8).iter().for_each(|word| word.store(number + 1, Ordering::Relaxed));
        let line = self.words(self.memory.posted, 8);
        let set = |word: &AtomicU64, at: usize, bits: u32, value: u64| {
            let mask = ((1u64 << bits) - 1) << at;
            word.store(word.load(Ordering::Relaxed) & !mask | value << at, Ordering::Relaxed);
        };
        set(&line[2 + place / 2], place % 2 * 32, 32, number + 77);
        let units = bytes.div_ceil(SLOT_SIZE_UNIT as usize) as u64;
        set(&line[6 + place / 4], place % 4 * 16, 16, units);
        line[0].store(number + 1, Ordering::Release);
    }

    fn leave(&self, counter: u64) {
        self.words(counter, 2)[1].store(1 << 32, Ordering::Release);
    }

    fn has_left(&self, counter: u64) -> bool {
        self.words(counter, 2)[1].load(Ordering::Acquire) >> 32 == 1
    }

    fn signature(&self, number: u64) -> u32 {
        let place = number as usize % SLOTS;
        (self.words(self.memory.posted, 8)[2 + place / 2].load(Ordering::Relaxed) >> (place % 2 * 32)) as u32
    }

    fn holds(&self, number: u64, bytes: usize) -> bool {
        let slot = self.memory.slots + number % SLOTS as u64 * u64::from(self.memory.slot_bytes);
        self.words(slot, bytes / 8).iter().all(|word| word.load(Ordering::Relaxed) == number + 1)
    }
}

/// A link between two ranks: the parts and the connections of both.
fn link(slot_bytes: u32) -> ([LinkPart; 2], [MovedConnection; 2]) {
    let (sender, receiver) = (LinkPart::new(slot_bytes), LinkPart::new(slot_bytes));
    let (one, other) = socket_pair().expect("sockets");
    let connection = |peer, socket: OwnedFd, sends, part: &LinkPart| {
        let stream = Some(MoverStream::new(socket, Vec::new()));
        MovedConnection::new((peer, false), stream, vec![(sends, part.memory)], part.segment.clone())
    };
    let connections = [connection(1, one, true, &sender), connection(0, other, false, &receiver)];
    ([sender, receiver], connections)
}

/// Both move until neither has anything to move; a socket that was full is free again, since the other has read.
fn settle(connections: &mut [MovedConnection; 2]) {
    let ready = Ready { token: 0, readable: true, writable: true };
    let mut still = 0;
    while still < 2 {
        connections.iter_mut().for_each(|connection| connection.ready(ready));
        let moved = connections.iter_mut().filter(|connection| !connection.is_broken()).map(MovedConnection::progress);
        still = if moved.fold(false, |any, moved| any | moved) { 0 } else { still + 1 };
    }
}

#[test]
fn what_is_posted_arrives_in_order_with_its_signature_and_no_more_than_there_is_room_for() {
    let ([sender, receiver], mut connections) = link(1 << 20);
    let sizes = [8, 256, 4096, 1 << 20, 0, (1 << 20) - 8];
    let (mut posted, mut consumed) = (0u64, 0u64);
    while consumed < 60 {
        // As a kernel does: as long as slots are free.
        while posted < 70 && posted < sender.value(sender.memory.consumed) + SLOTS as u64 {
            sender.post(posted, sizes[posted as usize % sizes.len()]);
            posted += 1;
        }
        settle(&mut connections);
        let there = receiver.value(receiver.memory.posted);
        assert!(there > consumed && there <= consumed + SLOTS as u64, "{there} of {posted}, {consumed} consumed");
        assert!(sender.value(sender.memory.consumed) == there, "what is on its way is free");
        let until = (consumed + 3).min(there);
        for number in consumed..until {
            assert!(receiver.holds(number, sizes[number as usize % sizes.len()]), "slot {number}");
            assert_eq!(receiver.signature(number), number as u32 + 77);
        }
        consumed = until;
        receiver.words(receiver.memory.consumed, 1)[0].store(consumed, Ordering::Release);
    }
    assert!(connections.iter().all(|connection| !connection.is_broken()));
    assert!(connections[0].is_behind(), "there was no room for the last ones");
}

#[test]
fn who_leaves_is_seen_at_the_other_end_after_what_it_has_posted() {
    let ([sender, receiver], mut connections) = link(4096);
    (0..SLOTS as u64).for_each(|number| sender.post(number, 64));
    settle(&mut connections);
    // There is no room for these.
    (8..10).for_each(|number| sender.post(number, 64));
    sender.leave(sender.memory.posted);
    settle(&mut connections);
    assert!(!receiver.has_left(receiver.memory.posted));
    receiver.words(receiver.memory.consumed, 1)[0].store(8, Ordering::Release);
    settle(&mut connections);
    assert_eq!((receiver.value(receiver.memory.posted), receiver.has_left(receiver.memory.posted)), (10, true));
    receiver.leave(receiver.memory.consumed);
    settle(&mut connections);
    assert!(sender.has_left(sender.memory.consumed) && !connections[0].is_behind());
}

#[test]
fn a_peer_that_is_gone_ends_the_connection_and_what_it_has_sent_arrives() {
    let ([sender, receiver], [mut one, mut other]) = link(4096);
    (0..8).for_each(|number| sender.post(number, 128));
    while one.progress() {}
    drop(one);
    // What the receiver has to say nobody hears, and that is no reason to lose what was sent to it.
    receiver.words(receiver.memory.consumed, 1)[0].store(1, Ordering::Release);
    receiver.leave(receiver.memory.consumed);
    while other.progress() {}
    assert_eq!(receiver.value(receiver.memory.posted), 8);
    assert!(other.is_broken() && other.trouble().contains("rank 0"), "{}", other.trouble());
    assert!(!other.is_behind());
}

/// The peer connects when it likes, and says first who it is. Where its host is another one, its end is that of its
/// links.
#[test]
fn a_stream_may_come_late_and_end_for_good() {
    let (sender, receiver) = (LinkPart::new(4096), LinkPart::new(4096));
    let (one, other) = socket_pair().expect("sockets");
    let hello = MoverStream::new(one, b"hello".to_vec());
    let mut early = MovedConnection::new((1, true), Some(hello), vec![(true, sender.memory)], sender.segment.clone());
    let mut late = MovedConnection::new((0, true), None, vec![(false, receiver.memory)], receiver.segment.clone());
    sender.post(0, 256);
    while early.progress() {}
    assert!(!late.progress() && late.socket().is_none());
    let mut read = [0; 5];
    rustix::io::read(&other, &mut read).expect("a hello");
    assert_eq!(&read, b"hello");
    late.attach(other);
    while late.progress() {}
    assert_eq!(receiver.value(receiver.memory.posted), 1);
    assert!(receiver.holds(0, 256) && !receiver.has_left(receiver.memory.posted));
    drop(early);
    late.ready(Ready { token: 0, readable: true, writable: true });
    while late.progress() {}
    assert!(late.is_broken() && receiver.has_left(receiver.memory.posted));
}

/// Bytes of a stranger, or of a peer gone mad.
fn told(bytes: &[u8]) -> String {
    let ([_sender, receiver], [_one, other]) = link(4096);
    let (mine, theirs) = socket_pair().expect("sockets");
    let stream = Some(MoverStream::new(theirs, Vec::new()));
    let links = vec![(false, receiver.memory)];
    let mut connection = MovedConnection::new((3, false), stream, links, receiver.segment.clone());
    rustix::io::write(&mine, bytes).expect("written");
    while connection.progress() {}
    drop(other);
    connection.trouble().to_string()
}

#[test]
fn nonsense_ends_the_connection_and_harms_nothing() {
    for (frame, what) in [
        (MoverFrame::Data { link: 1, bytes: 8, signature: 0 }, "a frame of no link"),
        (MoverFrame::Data { link: 0, bytes: 4097, signature: 0 }, "more data than"),
        (MoverFrame::Credit { link: 0, consumed: 1 }, "credit for what"),
        (MoverFrame::Left { link: 0, sender: false }, "an end that is not its own"),
    ] {
        let trouble = told(&frame.encode());
        assert!(trouble.contains("rank 3") && trouble.contains(what), "{trouble}");
    }
    assert!(told(&[9; HEAD]).contains("no frame"));
    let empty = MoverFrame::Data { link: 0, bytes: 0, signature: 0 }.encode();
    assert!(told(&empty.repeat(SLOTS)).is_empty());
    assert!(told(&empty.repeat(SLOTS + 1)).contains("no room"));
}

proptest! {
    #[test]
    fn frames_survive_their_encoding(link: u16, bytes: u32, signature: u32, consumed: u64, sender: bool) {
        let data = MoverFrame::Data { link, bytes, signature };
        for frame in [data, MoverFrame::Credit { link, consumed }, MoverFrame::Left { link, sender }] {
            prop_assert_eq!(MoverFrame::decode(&frame.encode()), Some(frame));
        }
    }

    #[test]
    fn any_head_is_read_without_harm(head: [u8; HEAD]) {
        if let Some(frame) = MoverFrame::decode(&head) {
            prop_assert_eq!(MoverFrame::decode(&frame.encode()), Some(frame));
        }
    }

    #[test]
    fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(0..4u8, 1..400)) {
        let _ = told(&bytes);
    }
}
