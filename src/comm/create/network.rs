//! Which network a communicator uses: each rank chooses one and listens, and says so in the lines that people look for.
//! All ranks must have the same.

use std::path::Path;
use std::sync::{Arc, Once};

use crate::bootstrap::{self, HostInterface, NetConfig, UniqueId};
use crate::comm::Comm;
use crate::error::Error;
use crate::params;
use crate::plugin::net::{NetSelection, SOCKETS, choose};
use crate::plugin::network::Network;
use crate::proxy::ListenAddress;
use crate::transport::{self, Links, TransportId};

/// Where the system lists InfiniBand devices.
const INFINIBAND: &str = "/sys/class/infiniband";

/// What a rank has chosen; none stands for [`SOCKETS`].
pub(super) type ChosenNetwork = Result<Option<Arc<dyn Network>>, Error>;

/// What other ranks are told of it: its name, or why there is none.
pub(super) fn told(chosen: &ChosenNetwork) -> Result<String, String> {
    match chosen {
        Ok(Some(network)) => Ok(network.name().to_string()),
        Ok(None) => Ok(SOCKETS.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

impl Comm {
    /// Chooses this rank's network. That there is none is told to all ranks, not returned.
    pub(super) fn choose_network(&self) -> ChosenNetwork {
        let params = params::snapshot();
        choose(&NetSelection {
            name: self.config.net_name.as_deref().filter(|name| !name.is_empty()),
            plugins: params.text(params::NET_PLUGIN),
            comm: self.identity.hash(),
            traffic_class: self.config.traffic_class,
        })
    }

    /// Lets ranks of other hosts find this one, where links may go by sockets. Who cannot be found says so if it is
    /// needed: what is wrong with the id or with interfaces the rendezvous tells.
    pub(super) fn listen(&self, links: Option<&Links>, network: &ChosenNetwork, net: &NetConfig, ids: &[UniqueId]) {
        if !transport::allowed().is_ok_and(|ids| ids.contains(&TransportId::Net)) {
            return;
        }
        if let (Some(links), Ok(Some(network))) = (links, network) {
            links.use_network(network.clone());
            if net.user_key.is_some() {
                warn_not_encrypted(network.name());
            }
        }
        let place = (self.identity.rank, self.identity.nranks);
        let listening = bootstrap::listen_addresses(net, ids, place).and_then(|addresses| {
            links.map_or(Ok(()), |links| links.listen(&addresses))?;
            Ok(addresses)
        });
        match listening {
            Ok(addresses) if matches!(network, Ok(None)) => log_sockets(&addresses),
            Ok(_) => {}
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

/// A key was set, and data go by a network that knows nothing of it.
fn warn_not_encrypted(network: &str) {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        log::warn!("ncclSetEncryption does not reach the data that go by network {network}: they are not encrypted");
    });
}

fn log_sockets(addresses: &[(HostInterface, ListenAddress)]) {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        log::info!(target: "INIT,NET", "{}", infiniband_line(&entries(Path::new(INFINIBAND))));
        let shown = addresses.iter().enumerate().map(|(at, (one, _))| format!(" [{at}]{}", one.show()));
        log::info!(target: "INIT,NET", "NET/Socket : Using{}", shown.collect::<String>());
    });
    log::info!(target: "INIT,NET", "Using network {SOCKETS}");
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
        assert_eq!(infiniband_line(&[]), "NET/IB : No device found.");
        assert!(infiniband_line(&["mlx5_0".into(), "mlx5_1".into()]).contains(": mlx5_0, mlx5_1 not used"));
        assert!(entries(Path::new("/none")).is_empty());
    }
}
