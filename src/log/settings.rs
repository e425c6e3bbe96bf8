//! What NCCL_DEBUG and its companions ask for (`docs/nccl-behaviour.md`). Pure.

/// The kinds of line, with NCCL's numbers; bit `1 << kind` stands for a kind in a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineKind {
    Version = 1,
    Warn = 2,
    Info = 3,
    Trace = 5,
    Attn = 6,
}

/// The words of NCCL_DEBUG, with the kinds of line that each shows.
const VERBOSITY: [(&str, u32); 6] = [
    ("VERSION", 0b000_0010),
    ("WARN", 0b000_0110),
    ("ATTN", 0b100_0110),
    ("INFO", 0b100_1110),
    ("ABORT", 0b101_1110),
    ("TRACE", 0b111_1110),
];

/// The words of NCCL_DEBUG_LEVELS and NCCL_DEBUG_TIMESTAMP_LEVELS and their bits.
pub const LEVELS: [(&str, u64); 8] = [
    ("VERSION", 1 << 1),
    ("WARN", 1 << 2),
    ("ATTN", 1 << 6),
    ("INFO", 1 << 3),
    ("ABORT", 1 << 4),
    ("TRACE", 1 << 5),
    ("ALL", 0xffff_ffff),
    ("NONE", 0),
];

/// The words of NCCL_DEBUG_SUBSYS and their bits.
pub const SUBSYSTEMS: [(&str, u64); 19] = [
    ("INIT", 0x1),
    ("COLL", 0x2),
    ("P2P", 0x4),
    ("SHM", 0x8),
    ("NET", 0x10),
    ("GRAPH", 0x20),
    ("TUNING", 0x40),
    ("ENV", 0x80),
    ("ALLOC", 0x100),
    ("CALL", 0x200),
    ("PROXY", 0x400),
    ("NVLS", 0x800),
    ("BOOTSTRAP", 0x1000),
    ("REG", 0x2000),
    ("PROFILE", 0x4000),
    ("RAS", 0x8000),
    ("DESTROY", 0x1_0000),
    ("ALLOC_HOST", 0x2_0000),
    ("ALL", u64::MAX),
];

const DEFAULT_SUBSYSTEMS: u64 = 0x1081;
const DEFAULT_STAMPED: u64 = 1 << 2 | 1 << 6;
const DEFAULT_FORMAT: &str = "[%F %T] ";

/// What the variables ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// NCCL_DEBUG as NCCL's number of the level; 0 is silence.
    level: i32,
    /// What NCCL_DEBUG_LEVELS adds.
    added: u32,
    /// Kinds of line that are shown, one bit each.
    levels: u32,
    /// Subsystems whose INFO and TRACE lines are shown.
    pub(super) subsystems: u64,
    /// Kinds of line that carry a timestamp.
    stamped: u64,
    /// The timestamp, as for strftime.
    pub(super) stamp_format: String,
    file: Option<String>,
    /// The first WARN raises the level to INFO.
    pub(super) info_after_warn: bool,
}

impl LogSettings {
    /// Reads the variables through `get`. A value that cannot be understood counts as unset.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> LogSettings {
        let text = |name| get(name).filter(|v| !v.is_empty());
        let word = text("NCCL_DEBUG").unwrap_or_default();
        let base = VERBOSITY.iter().find(|(name, _)| name.eq_ignore_ascii_case(word.trim()));
        let named = LEVELS.iter().find(|(name, _)| base.is_some_and(|(word, _)| word == name));
        let list = |name, words: &[(&str, u64)]| text(name).and_then(|v| mask(&v, words));
        let added = list("NCCL_DEBUG_LEVELS", &LEVELS).unwrap_or(0) as u32;
        LogSettings {
            level: named.map_or(0, |(_, bit)| bit.trailing_zeros() as i32),
            added,
            levels: base.map_or(0, |(_, mask)| *mask) | added,
            subsystems: text("NCCL_DEBUG_SUBSYS").and_then(|v| subsystems(&v)).unwrap_or(DEFAULT_SUBSYSTEMS),
            stamped: list("NCCL_DEBUG_TIMESTAMP_LEVELS", &LEVELS).unwrap_or(DEFAULT_STAMPED),
            stamp_format: get("NCCL_DEBUG_TIMESTAMP_FORMAT").unwrap_or_else(|| DEFAULT_FORMAT.to_string()),
            file: text("NCCL_DEBUG_FILE"),
            info_after_warn: text("NCCL_WARN_ENABLE_DEBUG_INFO").is_some_and(|v| is_true(&v)),
        }
    }

    /// NCCL_DEBUG as NCCL's number of the level: 0 none, 1 VERSION … 6 ATTN.
    pub fn level_number(&self) -> i32 {
        self.level
    }

    /// The mask of NCCL_DEBUG_LEVELS.
    pub fn added_levels(&self) -> u32 {
        self.added
    }

    /// The mask of NCCL_DEBUG_SUBSYS.
    pub fn subsystem_mask(&self) -> u64 {
        self.subsystems
    }

    /// The mask of NCCL_DEBUG_TIMESTAMP_LEVELS.
    pub fn stamped_levels(&self) -> u32 {
        self.stamped as u32
    }

    /// NCCL_DEBUG_TIMESTAMP_FORMAT.
    pub fn stamp_format(&self) -> &str {
        &self.stamp_format
    }

    pub(super) fn shows(&self, kind: LineKind) -> bool {
        self.levels >> kind as u32 & 1 != 0
    }

    pub(super) fn stamps(&self, kind: LineKind) -> bool {
        self.stamped >> kind as u32 & 1 != 0
    }

    /// The log file, which counts only where more than version lines are shown.
    pub(super) fn log_file(&self) -> Option<&str> {
        self.file.as_deref().filter(|_| self.levels >> 2 != 0 || self.info_after_warn)
    }

    /// What the facade must let through. WARN always: it is the last error.
    pub(super) fn max_level(&self) -> ::log::LevelFilter {
        if self.shows(LineKind::Trace) {
            ::log::LevelFilter::Trace
        } else if self.shows(LineKind::Info) {
            ::log::LevelFilter::Info
        } else {
            ::log::LevelFilter::Warn
        }
    }
}

/// The mask of a comma-separated list of `words`; None if one is unknown. Case and blanks do not matter.
pub(super) fn mask(list: &str, words: &[(&str, u64)]) -> Option<u64> {
    let bit = |token: &str| words.iter().find(|(name, _)| name.eq_ignore_ascii_case(token.trim())).map(|(_, b)| *b);
    list.split(',').try_fold(0, |mask, token| Some(mask | bit(token)?))
}

/// A subsystem list; a leading `^` means all but the listed ones.
pub(super) fn subsystems(list: &str) -> Option<u64> {
    match list.strip_prefix('^') {
        Some(rest) => mask(rest, &SUBSYSTEMS).map(|m| !m),
        None => mask(list, &SUBSYSTEMS),
    }
}

fn is_true(value: &str) -> bool {
    ["1", "t", "true"].iter().any(|w| w.eq_ignore_ascii_case(value.trim()))
}

/// The kind and subsystems of a record of the facade; None for records of other crates.
pub(super) fn classify(metadata: &::log::Metadata<'_>) -> Option<(LineKind, u64)> {
    let target = metadata.target();
    let bits = match target.starts_with("nccl") {
        true => u64::MAX, // no target was given: the module path of this crate
        false if target == "ATTN" => u64::MAX,
        false => mask(target, &SUBSYSTEMS)?,
    };
    Some(match metadata.level() {
        ::log::Level::Error | ::log::Level::Warn if target == "ATTN" => (LineKind::Attn, bits),
        ::log::Level::Error | ::log::Level::Warn => (LineKind::Warn, u64::MAX),
        ::log::Level::Info => (LineKind::Info, bits),
        ::log::Level::Debug | ::log::Level::Trace => (LineKind::Trace, bits),
    })
}
