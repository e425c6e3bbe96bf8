//! One table of every variable: it drives the parser, the documentation, `ncclParam*` and
//! the dump. NCCL's variables keep names, meaning and precedence; ours begin with `OXCCL_`.
//!
//! [`load`] reads the configuration files once, [`snapshot`] gives the values that hold for one
//! communicator. Nothing here is unsafe: who may write to the process environment is told to [`load`].

mod conf;
mod docs;
mod parse;
mod registry;
mod source;
mod table;
mod table_accepted;
#[cfg(test)]
mod tests;

pub use docs::markdown;
pub use parse::{cta_policy, integer};
pub use registry::{Typed, dump, find_published, published, text_of, typed_of};
pub use source::{Environment, Files, ValueSource};
pub use table::*;

use parking_lot::Mutex;
use parse::Reading;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

/// What is known since the first initialisation.
struct Loaded {
    /// Values that are read once.
    cached: Vec<Option<Reading>>,
    /// Which file a variable of the environment came from.
    origins: HashMap<String, ValueSource>,
}

static LOADED: OnceLock<Arc<Loaded>> = OnceLock::new();
static LOADING: Mutex<()> = Mutex::new(());

/// The values of all variables as they hold for one communicator. Cheap to make and to clone.
#[derive(Clone, Debug)]
pub struct Snapshot {
    values: Arc<Vec<Option<Reading>>>,
    sources: Arc<Vec<Option<ValueSource>>>,
}

/// Reads the configuration files into the environment (the environment wins over the user's file, that
/// over /etc/nccl.conf), then all variables that are read once, and logs each that is set with its
/// source. Only the first call of the process does anything.
pub fn load(environment: &mut dyn Environment) {
    if LOADED.get().is_some() {
        return;
    }
    let _one_loader = LOADING.lock();
    if LOADED.get().is_some() {
        return;
    }
    let (origins, mut notes) = conf::apply(environment);
    if origins.keys().any(|name| name.starts_with("NCCL_DEBUG") || name == "NCCL_WARN_ENABLE_DEBUG_INFO") {
        crate::log::reset();
    }
    let get = |name: &str| environment.get(name);
    let values = read_all(&get, &mut notes, &origins);
    notes.iter().for_each(|note| ::log::info!(target: "ENV", "{note}"));
    let _ = LOADED.set(Arc::new(Loaded { cached: values, origins }));
}

/// The values for one communicator: those that are read once, and a fresh look at the others.
pub fn snapshot() -> Snapshot {
    let process = |name: &str| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned());
    match LOADED.get() {
        Some(loaded) => Snapshot::take(&process, Some(&loaded.cached), &loaded.origins),
        None => Snapshot::take(&process, None, &HashMap::new()),
    }
}

impl Snapshot {
    /// The values of an environment that is given by `get`; for tests and tools.
    pub fn of(get: impl Fn(&str) -> Option<String>) -> Snapshot {
        Snapshot::take(&get, None, &HashMap::new())
    }

    fn take(
        get: &dyn Fn(&str) -> Option<String>,
        cached: Option<&Vec<Option<Reading>>>,
        origins: &HashMap<String, ValueSource>,
    ) -> Snapshot {
        let uncached = get(TABLE[NO_CACHE.index()].name).unwrap_or_default();
        let values: Vec<_> = TABLE
            .iter()
            .enumerate()
            .map(|(i, param)| match cached {
                Some(values) if !param.fresh && !parse::lists_name(&uncached, param.name) => values[i].clone(),
                _ => get(param.name).and_then(|text| parse::read(param, &text)),
            })
            .collect();
        let source = |i: usize| origins.get(TABLE[i].name).cloned().unwrap_or(ValueSource::Environment);
        let sources = values.iter().enumerate().map(|(i, v)| v.as_ref().map(|_| source(i))).collect();
        Snapshot { values: Arc::new(values), sources: Arc::new(sources) }
    }

    /// The number of an integer variable: what is set, else the default.
    pub fn int(&self, key: Key) -> i64 {
        self.set_int(key).unwrap_or(key.param().default_int())
    }

    /// The number of an integer variable if it is set to one.
    pub fn set_int(&self, key: Key) -> Option<i64> {
        self.values[key.index()].as_ref().and_then(|r| r.number)
    }

    /// Whether a variable is set to something other than 0, or is so by default.
    pub fn flag(&self, key: Key) -> bool {
        self.int(key) != 0
    }

    /// The text of a variable if it is set and not empty.
    pub fn text(&self, key: Key) -> Option<&str> {
        self.values[key.index()].as_ref().map(|r| r.text.as_str()).filter(|t| !t.is_empty())
    }

    /// Where the value comes from; None for the default.
    pub fn source(&self, key: Key) -> Option<&ValueSource> {
        self.sources[key.index()].as_ref()
    }
}

/// Reads every variable and notes those that are set, with what was made of them.
fn read_all(
    get: &dyn Fn(&str) -> Option<String>,
    notes: &mut Vec<String>,
    origins: &HashMap<String, ValueSource>,
) -> Vec<Option<Reading>> {
    let mut one = |param: &Param| {
        let text = get(param.name)?;
        let source = origins.get(param.name).unwrap_or(&ValueSource::Environment);
        let reading = parse::read(param, &text);
        notes.extend(parse::note(param, &text, reading.as_ref(), source));
        reading
    };
    TABLE.iter().map(&mut one).collect()
}
