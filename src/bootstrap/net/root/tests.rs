//! A root with many connections.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::super::connections::raise_descriptor_limit;
use super::*;
use crate::bootstrap::id::IdParts;
use crate::bootstrap::{Bootstrap, Join, create_id};
use crate::proxy::tests::TURN;

const STRANGERS: usize = 500;
const LIMIT: Duration = Duration::from_secs(30);

/// Whether the other side ends a connection in time.
fn is_closed(mut stream: TcpStream) -> bool {
    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
    match stream.read(&mut [0; 16]) {
        Ok(n) => n == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

/// Hundreds of connections say nothing, or half a word, and stay; the ranks meet, and the root ends with them.
#[test]
fn hundreds_of_strangers_do_no_harm() {
    let _turn = TURN.lock();
    raise_descriptor_limit();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    if limit.is_some_and(|limit| limit < 4 * STRANGERS as u64) {
        return eprintln!("skipped: this process may open {limit:?} files");
    }
    let config = &NetConfig::default();
    let id = &create_id(config).expect("an id");
    let root = IdParts::decode(id).expect("its parts").root;
    let visit = |number: usize| {
        let mut stream = TcpStream::connect(root).expect("a connection");
        stream.write_all(&[7; 3][..number % 4]).expect("written");
        stream
    };
    let strangers: Vec<TcpStream> = (0..STRANGERS).map(visit).collect();
    std::thread::scope(|scope| {
        for rank in 0..3 {
            scope.spawn(move || {
                let join = Join {
                    rank,
                    nranks: 3,
                    version: 1,
                    settings: Vec::new(),
                    facts: Vec::new(),
                    common: Vec::new(),
                    cancel: None,
                };
                let bootstrap = Bootstrap::join(config, id, join).expect("a rank");
                bootstrap.barrier().expect("all ranks");
                bootstrap.complete();
            });
        }
    });
    assert!(strangers.into_iter().all(is_closed));
    assert!(TcpStream::connect(root).is_err(), "nobody listens any more");
}
