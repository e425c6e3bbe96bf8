//! Which network a communicator uses: it listens, and says so in the lines that people look for.

use std::path::{Path, PathBuf};
use std::sync::Once;

use crate::bootstrap::{self, NetConfig, UniqueId};
use crate::comm::Comm;
use crate::error::Error;
use crate::transport::{self, Links, TransportId};

/// The net plug-in that is looked for.
const PLUGIN: &str = "libnccl-net.so";
/// Where the loader looks, after `LD_LIBRARY_PATH`.
const LIBRARY_FOLDERS: [&str; 7] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
    "/usr/local/lib",
];
/// Where the system lists InfiniBand devices.
const INFINIBAND: &str = "/sys/class/infiniband";

impl Comm {
    /// Lets ranks of other hosts find this one, where links may go by sockets. Who cannot be found says so if it is
    /// needed: what is wrong with the id or with interfaces the rendezvous tells.
    pub(super) fn listen(&self, links: Option<&Links>, net: &NetConfig, id: &UniqueId) {
        if !transport::allowed().is_ok_and(|ids| ids.contains(&TransportId::Net)) {
            return;
        }
        let listening = links.map_or(Ok(()), |links| links.listen(bootstrap::own_address(net, id)?));
        match listening {
            Ok(()) => log_network(net, id),
            // The user limits the ports, and other hosts will miss this rank.
            Err(error @ Error::Resource(_)) if net.ports.is_some() => {
                log::warn!("rank {} does not listen for other hosts: {error}", self.rank());
            }
            Err(error) => {
                log::info!(target: "INIT,NET", "rank {} does not listen for other hosts: {error}", self.rank());
            }
        }
    }
}

fn log_network(net: &NetConfig, id: &UniqueId) {
    if !log::log_enabled!(target: "INIT,NET", log::Level::Info) {
        return;
    }
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        log::info!(target: "INIT,NET", "{}", plugin_line(find_plugin().as_deref()));
        log::info!(target: "INIT,NET", "{}", infiniband_line(&entries(Path::new(INFINIBAND))));
        if let Ok(interfaces) = bootstrap::socket_interfaces(net, id) {
            let shown = interfaces.iter().enumerate().map(|(at, one)| format!(" [{at}]{}", one.show()));
            log::info!(target: "INIT,NET", "NET/Socket : Using{}", shown.collect::<String>());
        }
    });
    log::info!(target: "INIT,NET", "Using network Socket");
}

fn plugin_line(found: Option<&Path>) -> String {
    match found {
        None => format!("NET/Plugin: Could not find: {PLUGIN}"),
        Some(path) => format!("NET/Plugin: {} is not used: this version loads no net plug-ins", path.display()),
    }
}

fn find_plugin() -> Option<PathBuf> {
    let told = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders = std::env::split_paths(&told).filter(|folder| !folder.as_os_str().is_empty());
    let all = folders.chain(LIBRARY_FOLDERS.iter().map(PathBuf::from));
    all.map(|folder| folder.join(PLUGIN)).find(|file| file.exists())
}

fn infiniband_line(devices: &[String]) -> String {
    match devices {
        [] => "NET/IB : No device found.".to_string(),
        some => format!("NET/IB : {} not used: this version has no transport over InfiniBand", some.join(", ")),
    }
}

fn entries(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_there_is_and_is_not_used_is_told() {
        assert_eq!(plugin_line(None), "NET/Plugin: Could not find: libnccl-net.so");
        assert!(plugin_line(Some(Path::new("/opt/libnccl-net.so"))).contains("/opt/libnccl-net.so is not used"));
        assert_eq!(infiniband_line(&[]), "NET/IB : No device found.");
        assert!(infiniband_line(&["mlx5_0".into(), "mlx5_1".into()]).contains(": mlx5_0, mlx5_1 not used"));
        assert!(entries(Path::new("/none")).is_empty());
    }
}
