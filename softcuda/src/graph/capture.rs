//! Captures: which streams belong to one, what becomes of what they are told, and what nobody may do meanwhile.

use super::node::Work;
use super::{State, body};
use crate::error::{CudaError, Outcome};
use crate::event::{Captured, Event};
use crate::stream::{Op, Recorder, Role, Stream};
use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ThreadId;

/// `CUstreamCaptureMode`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Unsafe calls are forbidden to all threads.
    Global = 0,
    /// They are forbidden to the thread that began the capture.
    ThreadLocal = 1,
    /// Nothing is forbidden, and any thread may end it.
    Relaxed = 2,
}

impl Mode {
    /// From the number.
    pub fn new(mode: i32) -> Outcome<Mode> {
        [Mode::Global, Mode::ThreadLocal, Mode::Relaxed]
            .into_iter()
            .find(|m| *m as i32 == mode)
            .ok_or(CudaError::INVALID_VALUE)
    }
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
}

/// `cuThreadExchangeStreamCaptureMode`
pub fn exchange_mode(mode: Mode) -> Mode {
    MODE.replace(mode)
}

/// A stream of a capture.
struct Member {
    /// `None`: destroyed meanwhile.
    stream: Option<&'static Stream>,
    /// What its next node depends on.
    tail: Vec<u64>,
}

struct Session {
    id: u64,
    graph: u64,
    /// The graph is made for this capture.
    own: bool,
    mode: Mode,
    thread: ThreadId,
    valid: bool,
    /// The first is where it began.
    members: Vec<Member>,
    /// As many as a tail has nodes, for `cuStreamGetCaptureInfo`: all of the default kind.
    edges: Vec<u64>,
}

/// What is known of a stream's capture.
pub struct Info {
    /// `CUstreamCaptureStatus`: 1 active, 2 invalidated.
    pub status: i32,
    /// Number of the capture.
    pub id: u64,
    /// The graph that is being made.
    pub graph: u64,
    /// Address of the handles that the next node depends on, valid until the stream is used again.
    pub tail: usize,
    /// Address of as many edge data.
    pub edges: usize,
    /// How many.
    pub count: usize,
}

/// All captures.
#[derive(Default)]
pub struct Captures {
    sessions: Mutex<Vec<Session>>,
    /// How many there are, to be looked at first.
    count: AtomicUsize,
}

fn same(member: &Member, stream: &'static Stream) -> bool {
    member.stream.is_some_and(|own| std::ptr::eq(own, stream))
}

/// Calls `tell` with a member, and with the legacy stream that may not be used while a blocking stream of its context
/// captures.
fn concerned(stream: &'static Stream, tell: impl Fn(&Stream)) {
    tell(stream);
    stream.legacy().into_iter().for_each(tell);
}

fn leave(stream: &'static Stream) {
    concerned(stream, Stream::end_capture);
}

impl Session {
    fn new(id: u64, graph: u64, own: bool, mode: Mode) -> Session {
        let thread = std::thread::current().id();
        Session { id, graph, own, mode, thread, valid: true, members: Vec::new(), edges: Vec::new() }
    }

    fn has(&self, stream: &'static Stream) -> bool {
        self.members.iter().any(|member| same(member, stream))
    }

    fn member(&mut self, stream: &'static Stream) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| same(member, stream))
    }

    fn join(&mut self, driver: &'static State, stream: &'static Stream, tail: Vec<u64>) {
        concerned(stream, |stream| stream.begin_capture(driver));
        self.members.push(Member { stream: Some(stream), tail });
    }

    fn check(&self) -> Outcome {
        if self.valid { Ok(()) } else { Err(CudaError::STREAM_CAPTURE_INVALIDATED) }
    }

    fn spoil(&mut self, error: CudaError) -> CudaError {
        self.valid = false;
        error
    }

    /// A blocking stream of the context belongs to it.
    fn blocks(&self, context: u64) -> bool {
        let streams = self.members.iter().filter_map(|member| member.stream);
        streams.filter(|stream| stream.role() == Role::Blocking).any(|stream| stream.context_handle() == context)
    }

    /// All work of other streams comes before the end of the first one.
    fn is_joined(&self, driver: &'static State) -> bool {
        let Some((origin, others)) = self.members.split_first() else { return true };
        let joined = body::with(driver, self.graph, |body| {
            let before = body.ancestors(&origin.tail);
            Ok(others.iter().flat_map(|member| &member.tail).all(|node| before.contains(node)))
        });
        joined.unwrap_or(false)
    }
}

impl Captures {
    /// Does something with the capture of a stream. The legacy stream has none, but may disturb some.
    fn of<T>(&self, stream: &'static Stream, act: impl FnOnce(&mut Session) -> Outcome<T>) -> Outcome<T> {
        let mut sessions = self.sessions.lock();
        if stream.role() == Role::Legacy {
            let disturbed = sessions.iter_mut().filter(|session| session.blocks(stream.context_handle()));
            disturbed.for_each(|session| session.valid = false);
            return Err(CudaError::STREAM_CAPTURE_IMPLICIT);
        }
        let session = sessions.iter_mut().find(|session| session.has(stream));
        act(session.ok_or(CudaError::ILLEGAL_STATE)?)
    }

    /// `cuStreamBeginCapture`, `cuStreamBeginCaptureToGraph`
    pub fn begin(
        &self,
        driver: &'static State,
        stream: &'static Stream,
        mode: Mode,
        to: Option<(u64, Vec<u64>)>,
    ) -> Outcome {
        if stream.role() == Role::Legacy {
            return Err(CudaError::STREAM_CAPTURE_UNSUPPORTED);
        }
        let mut sessions = self.sessions.lock();
        if stream.is_captured() {
            return Err(CudaError::ILLEGAL_STATE);
        }
        let own = to.is_none();
        let (graph, tail) = match to {
            Some((graph, tail)) => (graph, tail),
            None => (body::create(driver, false)?, Vec::new()),
        };
        body::with(driver, graph, |body| body.check(&tail))?;
        let mut session = Session::new(driver.unique(), graph, own, mode);
        session.join(driver, stream, tail);
        sessions.push(session);
        self.count.store(sessions.len(), Ordering::SeqCst);
        Ok(())
    }

    /// `cuStreamEndCapture`: the graph.
    pub fn end(&self, driver: &'static State, stream: &'static Stream) -> Outcome<u64> {
        if stream.role() == Role::Legacy {
            return Err(CudaError::ILLEGAL_STATE);
        }
        let id = self.of(stream, |session| {
            if !session.members.first().is_some_and(|origin| same(origin, stream)) {
                return Err(session.spoil(CudaError::STREAM_CAPTURE_UNMATCHED));
            }
            if session.mode != Mode::Relaxed && session.thread != std::thread::current().id() {
                return Err(CudaError::STREAM_CAPTURE_WRONG_THREAD);
            }
            Ok(session.id)
        })?;
        let session = self.take(id).ok_or(CudaError::ILLEGAL_STATE)?;
        let sound = session
            .check()
            .and_then(|()| if session.is_joined(driver) { Ok(()) } else { Err(CudaError::STREAM_CAPTURE_UNJOINED) });
        if sound.is_err() && session.own {
            let _ = body::discard(driver, session.graph);
        }
        sound.map(|()| session.graph)
    }

    fn take(&self, id: u64) -> Option<Session> {
        let mut sessions = self.sessions.lock();
        let place = sessions.iter().position(|session| session.id == id)?;
        let session = sessions.remove(place);
        session.members.iter().filter_map(|member| member.stream).for_each(leave);
        self.count.store(sessions.len(), Ordering::SeqCst);
        Some(session)
    }

    /// Adds a node to the capture of a stream.
    pub fn add(&self, driver: &'static State, stream: &'static Stream, work: Work) -> Outcome {
        self.of(stream, |session| {
            session.check()?;
            session.add(driver, stream, work)
        })
    }

    /// Records an event in a stream that captures.
    pub fn record(&self, stream: &'static Stream, event: &'static Event) -> Outcome {
        let captured = self.of(stream, |session| {
            session.check()?;
            let capture = session.id;
            Ok(Captured {
                capture,
                nodes: session.member(stream).map(|member| member.tail.clone()).unwrap_or_default(),
            })
        })?;
        event.record_captured(captured);
        Ok(())
    }

    /// Makes a stream wait for an event, one of both being part of a capture.
    pub fn wait(&self, driver: &'static State, stream: &'static Stream, event: &'static Event) -> Outcome {
        match event.captured() {
            Some(captured) => self.wait_captured(driver, stream, captured),
            None => self.of(stream, |session| {
                session.check()?;
                if event.is_recorded() { Err(session.spoil(CudaError::STREAM_CAPTURE_ISOLATION)) } else { Ok(()) }
            }),
        }
    }

    fn wait_captured(&self, driver: &'static State, stream: &'static Stream, captured: Captured) -> Outcome {
        let mut sessions = self.sessions.lock();
        let own = sessions.iter().position(|session| session.has(stream));
        let other = sessions.iter().position(|session| session.id == captured.capture);
        let Some(other) = other else {
            // Its capture has ended.
            let spoiled = own.map(|own| sessions[own].spoil(CudaError::CAPTURED_EVENT));
            return Err(spoiled.unwrap_or(CudaError::CAPTURED_EVENT));
        };
        sessions[other].check()?;
        match own {
            None if stream.role() == Role::Legacy => Err(sessions[other].spoil(CudaError::STREAM_CAPTURE_IMPLICIT)),
            None => {
                sessions[other].join(driver, stream, captured.nodes);
                Ok(())
            }
            Some(own) if own != other => {
                sessions[own].valid = false;
                Err(sessions[other].spoil(CudaError::STREAM_CAPTURE_MERGE))
            }
            Some(own) => {
                if let Some(member) = sessions[own].member(stream) {
                    let new =
                        captured.nodes.iter().filter(|node| !member.tail.contains(node)).copied().collect::<Vec<_>>();
                    member.tail.extend(new);
                }
                Ok(())
            }
        }
    }

    /// Somebody asks for the state of a stream that captures, or waits for it, or uses it as it may not be used.
    pub fn disturb(&self, stream: &'static Stream) -> CudaError {
        let disturbed: Outcome = self.of(stream, |session| {
            session.check()?;
            Err(session.spoil(CudaError::STREAM_CAPTURE_UNSUPPORTED))
        });
        disturbed.err().unwrap_or(CudaError::STREAM_CAPTURE_UNSUPPORTED)
    }

    /// The same for an event.
    pub fn disturb_event(&self, captured: &Captured) -> CudaError {
        let mut sessions = self.sessions.lock();
        let session = sessions.iter_mut().find(|session| session.id == captured.capture);
        session.map_or(CudaError::CAPTURED_EVENT, |session| session.spoil(CudaError::CAPTURED_EVENT))
    }

    /// The same for all streams of a context; for a primary one, those of its green contexts, too.
    pub fn check_context(&self, context: u64) -> Outcome {
        if self.count.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        let mut result = Ok(());
        let belongs = |stream: &Stream| [stream.context_handle(), stream.home()].contains(&context);
        let streams = |session: &Session| session.members.iter().filter_map(|m| m.stream).any(belongs);
        for session in self.sessions.lock().iter_mut().filter(|session| streams(session)) {
            result = Err(session.spoil(CudaError::STREAM_CAPTURE_UNSUPPORTED));
        }
        result
    }

    /// Called by what CUDA calls potentially unsafe: an error where a capture forbids it, which is spoilt then.
    #[inline]
    pub fn allow_unsafe(&self) -> Outcome {
        if self.count.load(Ordering::SeqCst) == 0 { Ok(()) } else { self.look_for_prohibition() }
    }

    #[cold]
    fn look_for_prohibition(&self) -> Outcome {
        let (mode, thread) = (MODE.get(), std::thread::current().id());
        let forbids = |session: &Session| {
            let own = session.thread == thread && session.mode != Mode::Relaxed;
            mode != Mode::Relaxed && (own || mode == Mode::Global && session.mode == Mode::Global)
        };
        let mut result = Ok(());
        for session in self.sessions.lock().iter_mut().filter(|session| forbids(session)) {
            result = Err(session.spoil(CudaError::STREAM_CAPTURE_UNSUPPORTED));
        }
        result
    }

    /// What a client may know of a stream's capture; `None`: it has none. The legacy stream's answer is an error where
    /// its use would be one, but it does no harm.
    pub fn info(&self, stream: &'static Stream) -> Outcome<Option<Info>> {
        if !stream.is_captured() {
            return Ok(None);
        }
        if stream.role() == Role::Legacy {
            return Err(CudaError::STREAM_CAPTURE_IMPLICIT);
        }
        self.of(stream, |session| {
            let (status, id, graph) = (if session.valid { 1 } else { 2 }, session.id, session.graph);
            let (tail, count) = session.member(stream).map_or((0, 0), |m| (m.tail.as_ptr() as usize, m.tail.len()));
            if session.edges.len() < count {
                session.edges.resize(count, 0);
            }
            Ok(Some(Info { status, id, graph, tail, edges: session.edges.as_ptr() as usize, count }))
        })
    }

    /// `cuStreamUpdateCaptureDependencies`; `replace`, or else add.
    pub fn set_tail(&self, driver: &'static State, stream: &'static Stream, nodes: Vec<u64>, replace: bool) -> Outcome {
        self.of(stream, |session| {
            session.check()?;
            body::with(driver, session.graph, |body| body.check(&nodes))?;
            if let Some(member) = session.member(stream) {
                let kept = if replace { Vec::new() } else { std::mem::take(&mut member.tail) };
                let new = nodes.into_iter().filter(|node| !kept.contains(node)).collect::<Vec<_>>();
                member.tail = [kept, new].concat();
            }
            Ok(())
        })
    }
}

impl Recorder for State {
    /// To a stream that captures, or to a legacy stream that may not be used.
    fn submit(&'static self, stream: &'static Stream, operation: Op) -> Outcome {
        self.graphs.captures.of(stream, |session| {
            session.check()?;
            let work = Work::captured(operation).map_err(|error| session.spoil(error))?;
            session.add(self, stream, work)
        })
    }

    /// With the stream that it began in the capture goes; the others' work stays.
    fn destroyed(&'static self, stream: &'static Stream) {
        let captures = &self.graphs.captures;
        let origin = captures.of(stream, |session| {
            let origin = session.members.first().is_some_and(|first| same(first, stream));
            if origin {
                return Ok(Some((session.id, session.graph, session.own)));
            }
            if let Some(member) = session.member(stream) {
                member.stream = None;
            }
            leave(stream);
            Ok(None)
        });
        if let Ok(Some((id, graph, own))) = origin {
            captures.take(id);
            if own {
                let _ = body::discard(self, graph);
            }
        }
    }
}

impl Session {
    fn add(&mut self, driver: &'static State, stream: &'static Stream, work: Work) -> Outcome {
        let graph = self.graph;
        let member = self.member(stream).ok_or(CudaError::ILLEGAL_STATE)?;
        // A client may have destroyed nodes meanwhile.
        let node = body::with(driver, graph, |body| body.add(driver, member.tail.clone(), work));
        match node {
            Ok(node) => {
                member.tail = vec![node];
                Ok(())
            }
            Err(error) => Err(self.spoil(error)),
        }
    }
}
