//! The view of the table that `ncclParam*` gives: ten of NCCL's variables, each with a C type.

use super::table::{Api, Param, TABLE, ValueKind};
use crate::log::{LEVELS, LogSettings, SUBSYSTEMS};

/// A value with its C type; a getter of another type refuses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Typed {
    /// `const char*`; None while it is not set.
    Text(Option<String>),
    /// `bool`, one byte.
    Bool(bool),
    /// An enum of four bytes that no typed getter takes: the level of NCCL_DEBUG.
    Level(i32),
    /// `uint32_t`.
    U32(u32),
    /// `uint64_t`.
    U64(u64),
}

/// Reads the environment; a test gives its own.
type Get<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The variables that are listed, in the table's order.
pub fn published(get: Get<'_>) -> Vec<&'static Param> {
    let all = typed_of_name("NCCL_PARAM_DUMP_ALL", get) == Some(Typed::Bool(true));
    TABLE.iter().filter(|p| p.api == Api::Published || (all && p.api == Api::Private)).collect()
}

/// The variable of a name, if `ncclParam*` knows it.
pub fn find_published(name: &str) -> Option<&'static Param> {
    TABLE.iter().find(|p| p.name == name && p.api != Api::Unknown)
}

fn typed_of_name(name: &str, get: Get<'_>) -> Option<Typed> {
    find_published(name).map(|p| typed_of(p, get))
}

/// The value of a variable with its C type.
pub fn typed_of(param: &Param, get: Get<'_>) -> Typed {
    let settings = LogSettings::read(get);
    match (param.name, param.kind) {
        ("NCCL_DEBUG", _) => Typed::Level(settings.level_number()),
        ("NCCL_DEBUG_SUBSYS", _) => Typed::U64(settings.subsystem_mask()),
        ("NCCL_DEBUG_LEVELS", _) => Typed::U32(settings.added_levels()),
        ("NCCL_DEBUG_TIMESTAMP_LEVELS", _) => Typed::U32(settings.stamped_levels()),
        ("NCCL_DEBUG_TIMESTAMP_FORMAT", _) => Typed::Text(Some(settings.stamp_format().to_string())),
        (_, ValueKind::Flag) => {
            let reading = get(param.name).and_then(|text| super::parse::read(param, &text));
            Typed::Bool(reading.and_then(|r| r.number).unwrap_or(param.default_int()) != 0)
        }
        _ => Typed::Text(get(param.name)),
    }
}

/// A value as `ncclParamGetParameter` shows it.
pub fn text_of(param: &Param, get: Get<'_>) -> String {
    match typed_of(param, get) {
        Typed::Text(text) => text.unwrap_or_default(),
        Typed::Bool(value) => if value { "TRUE" } else { "FALSE" }.to_string(),
        Typed::Level(level) => level_word(level).to_string(),
        Typed::U32(mask) => words_of(u64::from(mask), &LEVELS),
        Typed::U64(mask) => words_of(mask, &SUBSYSTEMS),
    }
}

fn level_word(level: i32) -> &'static str {
    let bit = 1u64 << level;
    LEVELS.iter().find(|(_, b)| level != 0 && *b == bit).map_or("<unknown>", |(word, _)| word)
}

/// The words of a mask; ALL and NONE stand alone.
fn words_of(mask: u64, words: &[(&str, u64)]) -> String {
    if let Some((all, _)) = words.iter().find(|(w, b)| *w == "ALL" && *b == mask) {
        return (*all).to_string();
    }
    let list: Vec<_> = words.iter().filter(|(w, b)| *w != "ALL" && *b & mask != 0).map(|(w, _)| *w).collect();
    if list.is_empty() { "NONE".to_string() } else { list.join(",") }
}

/// The text of `ncclParamDumpAll`.
pub fn dump(get: Get<'_>) -> String {
    let mut out = String::from("=== ncclParam Registry Dump ===\n");
    for param in published(get) {
        let (kind, flags) = (c_type(param, get), if param.api == Api::Private { "Private" } else { "Published" });
        let set_by = if get(param.name).is_some() { "Environment" } else { "Default" };
        let value = Some(text_of(param, get)).filter(|t| !t.is_empty()).unwrap_or("<unset>".to_string());
        let default = Some(text_of(param, &|_| None)).filter(|t| !t.is_empty()).unwrap_or("<unset>".to_string());
        out += &format!("{} ({kind}) [{flags}] {}\n", param.name, param.doc);
        out += &format!("    Current value={value} set_by={set_by} default={default}\n");
        out += &format!("    Accepted value: {}\n\n", accepted(param, get));
    }
    out
}

fn c_type(param: &Param, get: Get<'_>) -> &'static str {
    match typed_of(param, get) {
        Typed::Text(_) => "const char*",
        Typed::Bool(_) => "bool",
        Typed::Level(_) => "ncclDebugLogLevel",
        Typed::U32(_) => "uint32_t",
        Typed::U64(_) => "uint64_t",
    }
}

fn accepted(param: &Param, get: Get<'_>) -> String {
    let words = |words: &[(&str, u64)]| words.iter().map(|(w, _)| *w).collect::<Vec<_>>().join(", ");
    match typed_of(param, get) {
        Typed::Text(_) => "String".to_string(),
        Typed::Bool(_) => "Boolean: 1/T/TRUE or 0/F/FALSE".to_string(),
        Typed::Level(_) => "One of: VERSION, WARN, ATTN, INFO, ABORT, TRACE".to_string(),
        Typed::U32(_) => format!("Comma-separated list of: {}", words(&LEVELS)),
        Typed::U64(_) => format!("Comma-separated list of: {}", words(&SUBSYSTEMS)),
    }
}
