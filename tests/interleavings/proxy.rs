//! The room `proxy`: all of the library's, with a place for event_loops for each process that a model has.

#[allow(dead_code)]
#[path = "../../src/proxy/event_loop.rs"]
mod event_loop;
#[path = "../../src/proxy/frame.rs"]
mod frame;
#[allow(dead_code)]
#[path = "../../src/proxy/message.rs"]
mod message;
mod models;
#[path = "../../src/proxy/outbox.rs"]
mod outbox;
#[allow(dead_code)]
#[path = "../../src/proxy/source.rs"]
mod source;
#[allow(dead_code)]
#[path = "../../src/proxy/stream.rs"]
mod stream;
#[allow(dead_code)]
#[path = "../../src/proxy/tcp.rs"]
mod tcp;
#[path = "../../src/proxy/unix.rs"]
mod unix;
