//! Net plug-ins: libraries that export `ncclNetPlugin_v6` to `_v12`, as networks. [`choose`] finds the one for a
//! communicator.

mod connection;
mod plugin;
mod properties;
mod table;

use std::collections::HashMap;
use std::sync::{Arc, Once};

use parking_lot::Mutex;

use self::plugin::NetPlugin;
use super::library::{self, PluginSearch};
use super::network::Network;
use crate::error::Error;

/// The kind of plug-in, in names of libraries.
const KIND: &str = "net";
/// The network that is always there.
pub const SOCKETS: &str = "Socket";

/// What a communicator wants of a network.
#[derive(Clone, Copy, Debug, Default)]
pub struct NetSelection<'a> {
    /// `NCCL_NET` or the configuration's `netName`: its name; case does not matter.
    pub name: Option<&'a str>,
    /// `NCCL_NET_PLUGIN`: a list of libraries.
    pub plugins: Option<&'a str>,
    /// What all ranks of the communicator know it by.
    pub comm: u64,
    /// The configuration's `trafficClass`.
    pub traffic_class: Option<i32>,
}

/// The plug-ins of this process, by what they were asked for as; none where there is none. They stay loaded.
#[derive(Default)]
struct NetPlugins {
    known: HashMap<String, Result<Arc<NetPlugin>, String>>,
    /// The one that was chosen by a communicator that asked for no name: those that follow take no other one.
    assigned: Option<String>,
}

/// The loader knows one set of libraries in a process, so this cannot be a field of anything.
static PLUGINS: Mutex<Option<NetPlugins>> = Mutex::new(None);

/// Chooses the network of a communicator and initialises it; none stands for [`SOCKETS`], the library's own.
///
/// # Errors
/// [`Error::InvalidUsage`] where a network is asked for by name and none of that name works.
pub fn choose(selection: &NetSelection<'_>) -> Result<Option<Arc<dyn Network>>, Error> {
    let mut plugins = PLUGINS.lock();
    let plugins = plugins.get_or_insert_default();
    let mut reasons = Vec::new();
    for entry in plugins.candidates(selection) {
        match plugins.try_one(&entry, selection) {
            Ok(network) => return Ok(Some(network)),
            Err(why) => reasons.push(format!("{entry}: {why}")),
        }
    }
    if !selection.takes(SOCKETS) {
        let name = selection.name.unwrap_or_default();
        reasons.push("there are no InfiniBand devices; Socket has another name".to_string());
        let reasons = reasons.join("; ");
        return Err(Error::InvalidUsage(format!(
            "Failed to initialize any NET plugin: NCCL_NET or netName asks for '{name}' ({reasons})"
        )));
    }
    if selection.plugins.is_some() && selection.name.is_none() && !reasons.is_empty() {
        tell_of_sockets(&reasons);
    }
    Ok(None)
}

/// Says, once in a process, that none of the plug-ins that the user has asked for is used.
fn tell_of_sockets(reasons: &[String]) {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        let reasons = reasons.join("; ");
        log::warn!(target: "ATTN", "no plug-in of NCCL_NET_PLUGIN is used ({reasons}): using network {SOCKETS}");
    });
}

impl NetSelection<'_> {
    /// Whether a network of this name will do.
    fn takes(&self, name: &str) -> bool {
        self.name.is_none_or(|wanted| wanted.eq_ignore_ascii_case(name))
    }
}

impl NetPlugins {
    /// The libraries to be tried, in this order.
    fn candidates(&self, selection: &NetSelection<'_>) -> Vec<String> {
        let mut listed = library::listed(KIND, selection.plugins);
        if let Some(assigned) = self.assigned.as_ref().filter(|_| selection.name.is_none())
            && listed.contains(assigned)
        {
            listed.retain(|entry| entry == assigned);
        }
        listed
    }

    /// Initialises the plug-in of a library for a communicator.
    ///
    /// # Errors
    /// Why it is not used.
    fn try_one(&mut self, entry: &str, selection: &NetSelection<'_>) -> Result<Arc<dyn Network>, String> {
        let known = self.known.entry(entry.to_string());
        let plugin = known.or_insert_with(|| load(entry)).clone()?;
        let other = |name: &str| Err(format!("its name is {name}"));
        let named = selection.takes(plugin.name()) || selection.takes(&plugin.name_now());
        if !named && !plugin.may_rename() {
            return other(plugin.name());
        }
        let network = match plugin.open(selection) {
            Ok(Some(network)) => network,
            Ok(None) => {
                log::info!(target: "INIT,NET", "NET/Plugin: {} has no device: it is not used", plugin.name());
                return Err(format!("{} has no device", plugin.name()));
            }
            Err(error) => {
                log::info!(target: "INIT,NET", "NET/Plugin: {} is not used: {error}", plugin.name());
                return Err(error.to_string());
            }
        };
        if !named && !selection.takes(network.name()) {
            return other(network.name());
        }
        if selection.name.is_none() {
            self.assigned = Some(entry.to_string());
        }
        log::info!(target: "INIT,NET", "Assigned NET plugin {} to comm", network.name());
        log::info!(target: "INIT,NET", "Using network {}", network.name());
        Ok(Arc::new(network))
    }
}

/// Loads the plug-in of a library.
fn load(entry: &str) -> Result<Arc<NetPlugin>, String> {
    let found = match library::open(KIND, entry) {
        PluginSearch::Loaded(library) => NetPlugin::find(library),
        PluginSearch::Broken(text) => Err(text),
        PluginSearch::Missing(names) => {
            log::info!(target: "INIT,NET", "NET/Plugin: Could not find: {names}");
            return Err("there is no such library".to_string());
        }
    };
    match found {
        Ok(plugin) => {
            log::info!(target: "INIT,NET", "Successfully loaded external network plugin {}", plugin.file());
            Ok(Arc::new(plugin))
        }
        Err(why) => {
            log::info!(target: "INIT,NET", "NET/Plugin: {entry} is not used: {why}");
            Err(why)
        }
    }
}
