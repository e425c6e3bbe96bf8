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

/// Sends messages of some lengths, `ahead` of them under way at each end, and checks what arrives.
///
/// # Errors
/// What either end says.
///
/// # Panics
/// If something else arrives than was sent.
pub fn exchange((mut sender, mut receiver): Pair, lengths: &[usize], ahead: usize) -> Result<(), Error> {
    let slot = lengths.iter().copied().max().unwrap_or(0).max(1);
    let mut from = Slots::new(&mut *sender, ahead, slot)?;
    let mut into = Slots::new(&mut *receiver, ahead, slot)?;
    let (mut sending, mut receiving) = (VecDeque::new(), VecDeque::new());
    let (mut begun, mut posted, mut arrived) = (0, 0, 0);
    let end = Instant::now() + LIMIT;
    while arrived < lengths.len() || !sending.is_empty() {
        assert!(Instant::now() < end, "{arrived} of {} messages have arrived", lengths.len());
        if posted < lengths.len() && receiving.len() < ahead {
            let buffer = into.buffer(posted % ahead, slot);
            // SAFETY: a slot is used again when its message has arrived and was looked at.
            if let Some(request) = unsafe { receiver.receive(buffer) }? {
                receiving.push_back(request);
                posted += 1;
            }
        }
        if begun < lengths.len() && sending.len() < ahead {
            let bytes = lengths[begun];
            let first = begun % ahead * slot;
            for (at, byte) in from.memory[first..first + bytes].iter_mut().enumerate() {
                *byte = expected(begun, at);
            }
            let buffer = from.buffer(begun % ahead, bytes);
            // SAFETY: a slot is written again when its message has been sent.
            if let Some(request) = unsafe { sender.send(buffer) }? {
                sending.push_back(request);
                begun += 1;
            }
        }
        done(&mut *sender, &mut sending)?;
        if let Some(bytes) = done(&mut *receiver, &mut receiving)? {
            let message = &into.memory[arrived % ahead * slot..][..slot];
            assert_eq!(bytes, lengths[arrived], "the length of message {arrived}");
            let wrong = message[..bytes].iter().enumerate().find(|(at, byte)| **byte != expected(arrived, *at));
            assert_eq!(wrong, None, "message {arrived}");
            arrived += 1;
        }
    }
    // Ends go before their memory.
    drop((sender, receiver));
    drop((from, into));
    Ok(())
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
