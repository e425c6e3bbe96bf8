//! The other ranks are told that this one will not come.

use crate::bootstrap::{Bootstrap, Join, NetConfig, UniqueId};
use crate::comm::config::VERSION;
use crate::comm::settings::Settings;
use crate::error::Error;

/// Ends the creation of a communicator on all ranks because this one cannot take part, for a wrong argument
/// or a lack: they may be waiting for it already. The numbers are as C gave them. A rank that is out of range
/// is told of, too; alone, a rank has nobody to tell, and its id is good for another try.
pub fn report_failure(ids: &[UniqueId], nranks: i32, rank: i32, error: &Error) {
    if nranks < 2 {
        return;
    }
    if let Ok(settings) = Settings::read() {
        tell(&settings.net, ids, nranks.cast_unsigned(), rank.cast_unsigned(), error);
    }
}

/// Tells the root that a rank has failed before it could join.
pub(super) fn tell(net: &NetConfig, ids: &[UniqueId], nranks: u32, rank: u32, error: &Error) {
    let join = Join::without_facts((rank, nranks), VERSION);
    if let Err(why) = Bootstrap::report_failure(net, ids, join, error) {
        log::info!(target: "INIT", "rank {rank} has failed and could not tell the other ranks: {why}");
    }
}
