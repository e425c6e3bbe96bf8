//! Both ends of a connection in one thread: messages between them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use nccl::error::Error;
use nccl::plugin::network::{
    NetBuffer, NetConnection, NetMemory, NetProperties, NetReceiver, NetRequest, NetSender, Network, RegionId,
};

/// Longer than anything here takes.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Tries again and again.
///
/// # Panics
/// When [`LIMIT`] has passed.
pub fn until<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LIMIT;
    loop {
        match attempt() {
            Some(result) => return result,
            None if Instant::now() > end => panic!("{what}: nothing within {LIMIT:?}"),
            None => std::thread::yield_now(),
        }
    }
}

/// A connection from a device of a network to another device of it.
pub type Pair = (Box<dyn NetSender>, Box<dyn NetReceiver>);

/// Connects; both ends are tried by turns.
///
/// # Errors
/// What either end says.
pub fn connect(network: &dyn Network, (from, to): (usize, usize)) -> Result<Pair, Error> {
    let mut listener = network.listen(to)?;
    let mut connecting = network.connect(from, listener.handle())?;
    let (mut sender, mut receiver) = (None, None);
    until("connecting", || {
        let step = || -> Result<(), Error> {
            if sender.is_none() {
                sender = connecting.connect()?;
            }
            if receiver.is_none() {
                receiver = listener.accept()?;
            }
            Ok(())
        };
        let failed = { step }().err();
        match (failed, sender.is_some() && receiver.is_some()) {
            (Some(error), _) => Some(Err(error)),
            (None, true) => Some(Ok(())),
            (None, false) => None,
        }
    })?;
    Ok((sender.expect("connected"), receiver.expect("accepted")))
}

/// Memory of the host that an end of a connection uses, cut into slots.
pub struct Slots {
    memory: Vec<u8>,
    slot: usize,
    region: RegionId,
}

impl Slots {
    /// Registers some slots.
    ///
    /// # Errors
    /// What the network says.
    pub fn new<C: NetConnection + ?Sized>(end: &mut C, count: usize, slot: usize) -> Result<Slots, Error> {
        let mut memory = vec![0; count * slot];
        let at = memory.as_mut_ptr().expose_provenance() as u64;
        let memory_of = NetMemory { address: at, bytes: memory.len(), kind: NetProperties::HOST };
        // SAFETY: the slots outlive the connection in every test here.
        let region = unsafe { end.register(memory_of) }?;
        Ok(Slots { memory, slot, region })
    }

    /// The first bytes of a slot.
    pub fn buffer(&mut self, slot: usize, bytes: usize) -> NetBuffer {
        let part = &mut self.memory[slot * self.slot..][..bytes];
        NetBuffer { address: part.as_mut_ptr().expose_provenance() as u64, bytes, region: self.region }
    }
}

/// A byte of a message.
fn expected(message: usize, at: usize) -> u8 {
    (message * 31 + at * 7 + at / 256) as u8
}

/// An end that sends messages of some lengths, a number of them under way at a time.
pub struct Sending<'a> {
    end: Box<dyn NetSender>,
    slots: Slots,
    lengths: &'a [usize],
    under_way: VecDeque<NetRequest>,
    ahead: usize,
    begun: usize,
}

impl<'a> Sending<'a> {
    /// Nothing is sent yet.
    ///
    /// # Errors
    /// What the network says.
    pub fn new(mut end: Box<dyn NetSender>, lengths: &'a [usize], ahead: usize) -> Result<Sending<'a>, Error> {
        let slots = Slots::new(&mut *end, ahead, longest(lengths))?;
        Ok(Sending { end, slots, lengths, under_way: VecDeque::new(), ahead, begun: 0 })
    }

    /// Does what can be done; whether all is sent.
    ///
    /// # Errors
    /// What the network says.
    pub fn step(&mut self) -> Result<bool, Error> {
        if self.begun < self.lengths.len() && self.under_way.len() < self.ahead {
            let (slot, bytes) = (self.begun % self.ahead, self.lengths[self.begun]);
            let first = slot * self.slots.slot;
            for (at, byte) in self.slots.memory[first..first + bytes].iter_mut().enumerate() {
                *byte = expected(self.begun, at);
            }
            let buffer = self.slots.buffer(slot, bytes);
            // SAFETY: a slot is written again when its message has been sent.
            if let Some(request) = unsafe { self.end.send(buffer) }? {
                self.under_way.push_back(request);
                self.begun += 1;
            }
        }
        done(&mut *self.end, &mut self.under_way)?;
        Ok(self.begun == self.lengths.len() && self.under_way.is_empty())
    }
}

/// The end that receives them.
pub struct Receiving<'a> {
    end: Box<dyn NetReceiver>,
    slots: Slots,
    lengths: &'a [usize],
    under_way: VecDeque<NetRequest>,
    ahead: usize,
    posted: usize,
    arrived: usize,
}

impl<'a> Receiving<'a> {
    /// Nothing has been received yet.
    ///
    /// # Errors
    /// What the network says.
    pub fn new(mut end: Box<dyn NetReceiver>, lengths: &'a [usize], ahead: usize) -> Result<Receiving<'a>, Error> {
        let slots = Slots::new(&mut *end, ahead, longest(lengths))?;
        Ok(Receiving { end, slots, lengths, under_way: VecDeque::new(), ahead, posted: 0, arrived: 0 })
    }

    /// Does what can be done; whether all has arrived.
    ///
    /// # Errors
    /// What the network says.
    ///
    /// # Panics
    /// If something else arrives than was sent.
    pub fn step(&mut self) -> Result<bool, Error> {
        let slot = self.slots.slot;
        if self.posted < self.lengths.len() && self.under_way.len() < self.ahead {
            let buffer = self.slots.buffer(self.posted % self.ahead, slot);
            // SAFETY: a slot is used again when its message has arrived and was looked at.
            if let Some(request) = unsafe { self.end.receive(buffer) }? {
                self.under_way.push_back(request);
                self.posted += 1;
            }
        }
        if let Some(bytes) = done(&mut *self.end, &mut self.under_way)? {
            let message = &self.slots.memory[self.arrived % self.ahead * slot..][..slot];
            assert_eq!(bytes, self.lengths[self.arrived], "the length of message {}", self.arrived);
            let wrong = message[..bytes].iter().enumerate().find(|(at, byte)| **byte != expected(self.arrived, *at));
            assert_eq!(wrong, None, "message {}", self.arrived);
            self.arrived += 1;
        }
        Ok(self.arrived == self.lengths.len())
    }
}

fn longest(lengths: &[usize]) -> usize {
    lengths.iter().copied().max().unwrap_or(0).max(1)
}

/// Sends messages of some lengths, `ahead` of them under way at each end, and checks what arrives.
///
/// # Errors
/// What either end says.
///
/// # Panics
/// If something else arrives than was sent.
pub fn exchange((sender, receiver): Pair, lengths: &[usize], ahead: usize) -> Result<(), Error> {
    let mut sending = Sending::new(sender, lengths, ahead)?;
    let mut receiving = Receiving::new(receiver, lengths, ahead)?;
    until("messages", || match (receiving.step(), sending.step()) {
        (Err(error), _) | (_, Err(error)) => Some(Err(error)),
        (Ok(arrived), Ok(sent)) => (arrived && sent).then_some(Ok(())),
    })
}

/// Whether the oldest request is done: with how many bytes.
fn done<C: NetConnection + ?Sized>(end: &mut C, requests: &mut VecDeque<NetRequest>) -> Result<Option<usize>, Error> {
    let Some(oldest) = requests.front() else { return Ok(None) };
    let bytes = end.test(*oldest)?;
    if bytes.is_some() {
        requests.pop_front();
    }
    Ok(bytes)
}

/// Lengths that are small, large and none.
pub fn lengths() -> Vec<usize> {
    let some = [8, 0, 1, 4096, 65_537, (1 << 20) + 3, 7];
    some.iter().cycle().take(28).copied().collect()
}
