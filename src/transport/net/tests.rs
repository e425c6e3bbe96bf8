use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::link::{LinkSide, MovedLink};
use super::slots::LinkMemory;
use super::socket::tests::networks;
use super::trailer::{TRAILER, Trailer};
use super::*;
use crate::plan::layout::{Proto, SLOT_SIZE_UNIT};
use crate::plan::schedule::{LinkClass, LinkId};
use crate::plugin::network::{NetBuffer, RegionId};
use crate::sys::Ready;

const LIMIT: Duration = Duration::from_secs(20);
const ID: LinkId = LinkId { from: 0, to: 1, class: LinkClass::Ring, proto: Proto::Simple, channel: 0 };

/// One rank's part of one link: two counters, then slots.
struct LinkPart {
    segment: (Arc<Mutex<HostSegment>>, usize),
    memory: LinkMemory,
}

impl LinkPart {
    fn new(slot_bytes: u32) -> LinkPart {
        let bytes = PAGE + SLOTS * (slot_bytes + SLOT_GAP) as usize;
        let segment = HostSegment::new(SharedMemory::anonymous(bytes).expect("memory"));
        let start = segment.host_address();
        let memory = LinkMemory { slots: start + PAGE as u64, posted: start, consumed: start + 64, slot_bytes };
        LinkPart { segment: (Arc::new(Mutex::new(segment)), bytes), memory }
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
        let (place, slot) = (
            number as usize % SLOTS,
            self.memory.slots + number % SLOTS as u64 * u64::from(self.memory.slot_bytes + SLOT_GAP),
        );
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
        let slot = self.memory.slots + number % SLOTS as u64 * u64::from(self.memory.slot_bytes + SLOT_GAP);
        self.words(slot, bytes / 8).iter().all(|word| word.load(Ordering::Relaxed) == number + 1)
    }
}

/// A link between two ranks by sockets: the parts of both, and what their movers have.
struct Linked {
    sender: LinkPart,
    receiver: LinkPart,
    ends: [MovedLink; 2],
    _networks: [Arc<SocketNetwork>; 2],
}

impl Linked {
    fn new(slot_bytes: u32, streams: u32) -> Linked {
        let (sender, receiver) = (LinkPart::new(slot_bytes), LinkPart::new(slot_bytes));
        let networks = networks(streams);
        let listener = networks[1].listen(0).expect("a listener");
        let connecting = networks[0].connect(0, listener.handle()).expect("a begin");
        let ends = [
            MovedLink::new((ID, 1), LinkSide::Connecting(connecting), sender.memory, sender.segment.clone()),
            MovedLink::new((ID, 0), LinkSide::Listening(listener), receiver.memory, receiver.segment.clone()),
        ];
        Linked { sender, receiver, ends, _networks: networks }
    }

    /// Both move until something holds.
    fn until(&mut self, what: &str, holds: impl Fn(&Linked) -> bool) {
        let limit = Instant::now() + LIMIT;
        while !holds(self) {
            let ready = Ready { token: 0, readable: true, writable: true };
            for end in &mut self.ends {
                end.ready(0, ready);
                end.turn();
            }
            assert!(Instant::now() < limit, "{what}");
            std::thread::yield_now();
        }
    }

    fn posted(&self) -> u64 {
        self.receiver.value(self.receiver.memory.posted)
    }

    fn free(&self) -> u64 {
        self.sender.value(self.sender.memory.consumed)
    }

    fn consume(&self, until: u64) {
        self.receiver.words(self.receiver.memory.consumed, 1)[0].store(until, Ordering::Release);
    }
}

#[test]
fn what_is_posted_arrives_in_order_with_its_signature_and_no_more_than_there_is_room_for() {
    for streams in [1, 3] {
        let mut linked = Linked::new(1 << 20, streams);
        let sizes = [8, 256, 4096, 1 << 20, 0, (1 << 20) - 8];
        let (mut posted, mut consumed) = (0u64, 0u64);
        while consumed < 60 {
            // As a kernel does: as long as slots are free.
            while posted < 70 && posted < linked.free() + SLOTS as u64 {
                linked.sender.post(posted, sizes[posted as usize % sizes.len()]);
                posted += 1;
            }
            linked.until("more", |linked| linked.posted() > consumed);
            let there = linked.posted();
            assert!(there <= consumed + SLOTS as u64, "{there} of {posted}, {consumed} consumed");
            for number in consumed..there {
                assert!(linked.receiver.holds(number, sizes[number as usize % sizes.len()]), "slot {number}");
                assert_eq!(linked.receiver.signature(number), number as u32 + 77);
            }
            consumed = there;
            linked.consume(consumed);
        }
        assert!(linked.ends.iter().all(|end| !end.is_broken()));
    }
}

#[test]
fn who_leaves_is_seen_at_the_other_end_after_what_it_has_posted() {
    let mut linked = Linked::new(4096, 1);
    (0..10).for_each(|number| {
        linked.until("room", |linked| number < linked.free() + SLOTS as u64);
        linked.sender.post(number, 64);
    });
    linked.sender.leave(linked.sender.memory.posted);
    linked.until("eight slots", |linked| linked.posted() == 8);
    // There is no room for the others.
    assert!(!linked.receiver.has_left(linked.receiver.memory.posted));
    linked.consume(8);
    linked.until("the end", |linked| linked.receiver.has_left(linked.receiver.memory.posted));
    assert_eq!(linked.posted(), 10);
    linked.until("delivery", |linked| !linked.ends[0].is_behind());
    assert!(linked.ends.iter().all(|end| !end.is_broken()));
}

#[test]
fn a_receiver_that_leaves_is_to_be_told_of_once() {
    let mut linked = Linked::new(4096, 1);
    linked.sender.post(0, 64);
    linked.until("a slot", |linked| linked.posted() == 1);
    linked.receiver.leave(linked.receiver.memory.consumed);
    let told = (0..5).filter(|_| linked.ends[1].turn().tell_left).count();
    assert_eq!(told, 1);
    linked.ends[0].peer_left();
    assert!(linked.sender.has_left(linked.sender.memory.consumed));
}

#[test]
fn a_peer_that_is_gone_ends_the_link_and_what_it_has_sent_arrives() {
    let mut linked = Linked::new(4096, 2);
    (0..8).for_each(|number| linked.sender.post(number, 128));
    linked.until("all is sent", |linked| linked.free() == 8 && linked.posted() == 8);
    let [sender, receiver] = linked.ends;
    drop(sender);
    linked.ends = [Linked::new(4096, 1).ends.into_iter().next().expect("one"), receiver];
    // Who has no slot to receive into does not look.
    linked.consume(1);
    linked.until("the end", |linked| linked.ends[1].is_broken());
    assert_eq!((linked.posted(), linked.receiver.has_left(linked.receiver.memory.posted)), (8, true));
    assert!(linked.ends[1].trouble().contains("closed"), "{}", linked.ends[1].trouble());
    assert!(!linked.ends[1].is_behind());
}

/// What a link makes of a message that is no slot of its.
#[test]
fn nonsense_ends_the_link_and_harms_nothing() {
    let slot = |number| Trailer::Slot { number, signature: 7 }.encode().to_vec();
    let messages = [vec![], vec![1; 5], vec![9; TRAILER], slot(1), [vec![3; 256], slot(9)].concat()];
    for mut message in messages.into_iter().chain([Trailer::Left { number: 3 }.encode().to_vec()]) {
        let (part, networks) = (LinkPart::new(4096), networks(1));
        let (mut sender, receiver) = super::socket::tests::connection_parts(&networks);
        let mut link = MovedLink::new((ID, 0), LinkSide::Listening(receiver), part.memory, part.segment.clone());
        let buffer = NetBuffer { address: message.as_mut_ptr() as u64, bytes: message.len(), region: RegionId(0) };
        let (limit, mut sent) = (Instant::now() + LIMIT, false);
        while !link.is_broken() {
            if let Some(sender) = sender.connected().filter(|_| !std::mem::replace(&mut sent, true)) {
                // SAFETY: the message lives until the end.
                unsafe { sender.send(buffer) }.expect("send");
            }
            link.ready(0, Ready { token: 0, readable: true, writable: false });
            link.turn();
            assert!(Instant::now() < limit, "nothing comes of {message:?}");
        }
        assert!(link.trouble().contains("slot 0 of its link"), "{}", link.trouble());
        assert_eq!(part.value(part.memory.posted), 0);
    }
}

/// A sender can be gone before it has connected: then no connection tells.
#[test]
fn a_peer_that_never_connects_is_pinged_and_is_gone_when_nobody_answers() {
    let mut linked = Linked::new(4096, 1);
    let receiver = &mut linked.ends[1];
    let (until, mut pings) = (Instant::now() + Duration::from_millis(2500), 0);
    while Instant::now() < until {
        pings += u32::from(receiver.turn().ping);
        std::thread::sleep(Duration::from_millis(5));
    }
    // After one second, and then after two.
    assert_eq!(pings, 1);
    assert!(!receiver.is_broken());
    receiver.peer_gone("nobody is there");
    assert!(receiver.is_broken() && receiver.trouble().contains("nobody is there"), "{}", receiver.trouble());
    assert!(linked.receiver.has_left(linked.receiver.memory.posted));
}

/// What a sender has sent before it was gone is not lost by that.
#[test]
fn a_link_that_is_connected_outlives_the_word_that_its_peer_is_gone() {
    let mut linked = Linked::new(4096, 1);
    linked.sender.post(0, 64);
    linked.until("a slot", |linked| linked.posted() == 1);
    linked.ends[1].peer_gone("nobody is there");
    linked.sender.post(1, 64);
    linked.until("another slot", |linked| linked.posted() == 2);
    assert!(!linked.ends[1].turn().ping);
}
