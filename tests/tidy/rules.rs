//! The rules, each a function from a file to findings.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use crate::rust::{PathUse, Source, Unsafe, UnsafeUse};
use crate::tree::File;

/// Fewer functions than this make no share.
const FEW: usize = 10;

/// A function with a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    pub file: String,
    pub line: usize,
    pub name: String,
    /// From its first line to its last brace.
    pub lines: usize,
    pub test: bool,
}

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    pub file: String,
    pub line: usize,
    pub rule: &'static str,
    pub text: String,
}

impl Finding {
    pub fn new(file: &str, line: usize, rule: &'static str, text: impl Into<String>) -> Finding {
        Finding { file: file.to_string(), line, rule, text: text.into() }
    }
}

/// The rooms of one crate.
#[derive(Clone, Copy)]
pub struct Order {
    /// The folder of its source, with a slash.
    pub root: &'static str,
    /// Top to bottom.
    pub rooms: &'static [&'static str],
}

impl Order {
    /// The order that a file belongs to, and the name of its room.
    fn of<'a>(path: &'a str, orders: &'a [Order]) -> Option<(&'a Order, &'a str)> {
        orders.iter().find_map(|order| {
            let inside = path.strip_prefix(order.root)?;
            Some((order, inside.split('/').next()?.trim_end_matches(".rs")))
        })
    }

    fn place(&self, room: &str) -> Option<usize> {
        self.rooms.iter().position(|known| *known == room)
    }
}

/// A struct that has more fields than the rule allows.
pub struct Exception {
    pub file: &'static str,
    pub name: &'static str,
    pub fields: usize,
}

/// A part of the tree that must not use some paths.
pub struct Purity {
    pub path: &'static str,
    pub except: &'static [&'static str],
    pub forbidden: &'static [&'static str],
}

/// Fails with all findings.
pub fn report(findings: Vec<Finding>) {
    let findings: BTreeSet<Finding> = findings.into_iter().collect();
    let lines: Vec<String> =
        findings.iter().map(|f| format!("{}:{}: {}: {}", f.file, f.line, f.rule, f.text)).collect();
    assert!(lines.is_empty(), "{} findings\n{}", lines.len(), lines.join("\n"));
}

/// The room that a path leads to, or `None` where it stays in its own or leaves the crate.
fn target_room(path: &PathUse) -> Option<&str> {
    let mut segments = path.segments.iter().map(String::as_str);
    match segments.next()? {
        "crate" => segments.next(),
        "super" => {
            let mut depth = path.module.len().checked_sub(1)?;
            for segment in segments {
                match segment {
                    "super" => depth = depth.checked_sub(1)?,
                    name => return (depth == 0).then_some(name),
                }
            }
            None
        }
        _ => None,
    }
}

fn broken(source: &Source) -> Option<Finding> {
    let why = source.broken.as_ref()?;
    Some(Finding::new(&source.path, 1, "unreadable", why.clone()))
}

/// Imports point downwards in the list of rooms.
pub fn import_order(source: &Source, orders: &[Order]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = broken(source).into_iter().collect();
    let Some((order, own)) = Order::of(&source.path, orders) else { return findings };
    let Some(place) = order.place(own) else { return findings };
    for path in source.paths.iter().filter(|path| !path.test) {
        let target = target_room(path).and_then(|name| order.place(name));
        if let Some(target) = target.filter(|target| *target < place) {
            let text =
                format!("{own} imports {}, which stands above it: {}", order.rooms[target], path.segments.join("::"));
            findings.push(Finding::new(&source.path, path.line, "import order", text));
        }
    }
    findings
}

/// Every file and folder at the top of a crate's source has a place in its order; programs are crates of their own.
pub fn unknown_rooms(files: &[File], orders: &[Order]) -> Vec<Finding> {
    let check = |file: &File| {
        let (order, name) = Order::of(&file.path, orders)?;
        let known = ["lib", "bin"].contains(&name) || order.place(name).is_some();
        (!known).then(|| Finding::new(&file.path, 1, "room", format!("`{name}` is not in the order of rooms")))
    };
    files.iter().filter(|file| file.is_rust()).filter_map(check).collect()
}

/// Structs with too many fields, and exceptions that say more than is so.
pub fn many_fields(sources: &[Source], most: usize, exceptions: &[Exception]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut used = BTreeSet::new();
    for source in sources {
        for found in source.structs.iter().filter(|found| !found.test && !found.by_c && found.fields > most) {
            let here = |(_, known): &(usize, &Exception)| known.file == source.path && known.name == found.name;
            let known = exceptions.iter().enumerate().find(here);
            used.extend(known.map(|(index, _)| index));
            let allowed = known.map_or(most, |(_, known)| known.fields);
            let text = match found.fields.cmp(&allowed) {
                Ordering::Equal => continue,
                Ordering::Greater => format!("`{}` has {} fields (at most {allowed})", found.name, found.fields),
                Ordering::Less => format!("`{}` has only {} fields: so should its exception", found.name, found.fields),
            };
            findings.push(Finding::new(&source.path, found.line, "many fields", text));
        }
    }
    let unused = exceptions.iter().enumerate().filter(|(index, _)| !used.contains(index));
    findings.extend(unused.map(|(_, gone)| {
        Finding::new(gone.file, 1, "many fields", format!("`{}` needs no exception any more", gone.name))
    }));
    findings
}

/// Types that share their name. Types of tests have to differ from those of the product only.
pub fn shared_names(sources: &[Source]) -> Vec<Finding> {
    let all = sources.iter().flat_map(|source| source.types.iter().map(move |found| (source, found)));
    let (tests, product): (Vec<_>, Vec<_>) = all.partition(|(_, found)| found.test);
    let mut first: BTreeMap<&str, String> = BTreeMap::new();
    let mut findings = Vec::new();
    for (source, found) in product.into_iter().chain(tests) {
        match first.get(found.name.as_str()) {
            Some(place) => {
                let text = format!("`{}` is a type at {place}, too", found.name);
                findings.push(Finding::new(&source.path, found.line, "shared name", text));
            }
            None if found.test => {}
            None => drop(first.insert(&found.name, format!("{}:{}", source.path, found.line))),
        }
    }
    findings
}

/// Paths that a part of the tree must not use.
pub fn purity(source: &Source, rules: &[Purity]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for rule in rules {
        let excepted = rule.except.iter().any(|path| source.path.starts_with(path));
        if !source.path.starts_with(rule.path) || excepted {
            continue;
        }
        for path in source.paths.iter().filter(|path| !path.test) {
            let full = absolute(path);
            let hit = rule.forbidden.iter().find(|bad| is_prefix(bad, &full));
            if let Some(bad) = hit {
                let text = format!("{} must not use {bad}: {full}", rule.path);
                findings.push(Finding::new(&source.path, path.line, "purity", text));
            }
        }
    }
    findings
}

fn absolute(path: &PathUse) -> String {
    match target_room(path) {
        Some(room) if path.segments[0] == "super" => format!("crate::{room}"),
        _ => path.segments.join("::"),
    }
}

fn is_prefix(prefix: &str, path: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// `unsafe` only where it is allowed.
pub fn unsafe_rooms(source: &Source, allowed: &[&str]) -> Vec<Finding> {
    let here = |place: &str| match place.strip_suffix('/') {
        Some(folder) => source.path.starts_with(place) || source.path == format!("{folder}.rs"),
        None => source.path == place,
    };
    if allowed.iter().any(|place| here(place)) {
        return Vec::new();
    }
    let outside = source.unsafes.iter().filter(|found| !found.test);
    outside
        .map(|found| Finding::new(&source.path, found.line, "unsafe room", "`unsafe` outside of its rooms"))
        .collect()
}

/// Every `unsafe` has a comment directly above it, or above the statement that it is part of.
pub fn safety_comments(source: &Source) -> Vec<Finding> {
    let bare = source.unsafes.iter().filter(|found| !is_explained(source, found));
    bare.map(|found| {
        let text = match found.what {
            Unsafe::Function => "needs a `# Safety` section, directly above or at the top of the file",
            _ => "needs a `// SAFETY:` comment directly above",
        };
        Finding::new(&source.path, found.line, "SAFETY", text)
    })
    .collect()
}

fn is_explained(source: &Source, found: &UnsafeUse) -> bool {
    let mut starts = found.statements.iter().copied().chain([found.line]);
    match found.what {
        Unsafe::Attribute => true,
        Unsafe::Block | Unsafe::Item => starts.any(|line| comment_above(source, line, &["SAFETY:"])),
        // Where all functions of a file share one contract (that of the C interface), its top may state it.
        Unsafe::Function => {
            starts.any(|line| comment_above(source, line, &["SAFETY:", "# Safety"]))
                || source.lines.iter().any(|line| line.starts_with("//!") && line.contains("# Safety"))
        }
    }
}

/// Whether the comment lines directly above a line (attributes may stand between) hold one of the words.
fn comment_above(source: &Source, line: usize, words: &[&str]) -> bool {
    let above = source.lines[..line - 1].iter().rev().map(|text| text.trim_start());
    above
        .take_while(|text| text.starts_with("//") || text.starts_with("#["))
        .any(|text| text.starts_with("//") && words.iter().any(|word| text.contains(word)))
}

/// Macros that say that something is unfinished or was for looking only.
pub fn leftovers(source: &Source) -> Vec<Finding> {
    let bad = ["todo", "unimplemented", "dbg"];
    let found = source.macros.iter().filter(|used| bad.contains(&used.name.as_str()));
    found.map(|used| Finding::new(&source.path, used.line, "leftover", format!("`{}!`", used.name))).collect()
}

/// Folders of one person's machine.
pub fn machine_paths(file: &File) -> Vec<Finding> {
    let folders = ["home", "root", "work", "Users"].map(|name| format!("/{name}/"));
    let starts = |line: &str, at: usize| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|c| !c.is_alphanumeric() && !"_-.}*)$<>%".contains(c))
    };
    let mut findings = Vec::new();
    for (number, line) in file.text.lines().enumerate() {
        for folder in &folders {
            if line.match_indices(folder.as_str()).any(|(at, _)| starts(line, at)) {
                findings.push(Finding::new(&file.path, number + 1, "machine path", line.trim()));
            }
        }
    }
    findings
}

/// Fails unless four fifths of the functions are short.
pub fn share_of_short(tree: &str, mut functions: Vec<Function>, limit: usize) {
    let total = functions.len();
    functions.retain(|function| function.lines > limit);
    functions.sort_by_key(|function| std::cmp::Reverse(function.lines));
    let long = functions.len();
    let list: Vec<String> =
        functions.iter().take(40).map(|f| format!("{}:{}: {} has {} lines", f.file, f.line, f.name, f.lines)).collect();
    println!("{tree}: {long} of {total} functions have more than {limit} lines");
    assert!(
        total < FEW || long * 5 <= total,
        "{tree}: {long} of {total} functions have more than {limit} lines (a fifth at most)\n{}",
        list.join("\n")
    );
}
