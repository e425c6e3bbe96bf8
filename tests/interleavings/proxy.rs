//! The room `proxy`: all of the library's, with a place for helpers for each process that a model has.

#[allow(dead_code)]
#[path = "../../src/proxy/helper.rs"]
mod helper;
#[path = "../../src/proxy/letter.rs"]
mod letter;
mod models;
#[path = "../../src/proxy/outbox.rs"]
mod outbox;
#[path = "../../src/proxy/source.rs"]
mod source;
