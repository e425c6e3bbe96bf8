//! The room `bootstrap` as far as waits go: what the event loop's thread changes, who waits for it, and who ends the
//! wait.

#[allow(dead_code)]
#[path = "../../src/bootstrap/net/cancel.rs"]
mod cancel;
mod models;
#[path = "../../src/bootstrap/net/shared.rs"]
mod shared;
