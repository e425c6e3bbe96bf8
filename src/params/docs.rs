//! The documentation page of the variables, made from the table.

use super::table::{Api, Param, TABLE, ValueKind};

/// `docs/PARAMETERS.md`, in Markdown.
pub fn markdown() -> String {
    let mut page = String::from(HEAD);
    let table = |used: bool| TABLE.iter().filter(move |p| p.used == used);
    page.push_str("\n## Variables with an effect\n\n| Variable | Values | Default | Meaning |\n|---|---|---|---|\n");
    table(true).for_each(|param| page.push_str(&row(param)));
    page.push_str("\n## Variables of NCCL that are accepted and have no effect yet\n\n");
    page.push_str("| Variable | Values | Default | Meaning |\n|---|---|---|---|\n");
    table(false).for_each(|param| page.push_str(&row(param)));
    page
}

const HEAD: &str = "# Variables

This page is made from the table in `src/params/`; a test holds it against the table.

A variable is looked up in the environment. What is not set there may stand in a file, one `NAME=value` a
line: the one that `NCCL_CONF_FILE` names, else `~/.nccl.conf`, and then `/etc/nccl.conf`. The environment
wins over the files, the first file over the second, and the first line over later ones. There is no quoting and
no trimming; a `#` in the first column makes a comment.

Numbers are read as C reads them (`0x` hexadecimal, leading `0` octal, anything behind the digits is ignored). A
number out of range becomes the nearest allowed one. `NCCL_DEBUG=INFO` shows every variable that is set, with
its source. Variables marked * are read for each communicator, the others once in a process.
";

fn row(param: &Param) -> String {
    let star = if param.fresh { "\\*" } else { "" };
    let doc = param.doc.replace('|', "\\|");
    let api = if param.api == Api::Published { " (`ncclParam*`)" } else { "" };
    format!("| `{}`{star} | {} | {} | {doc}{api} |\n", param.name, values(param), param.default_text())
}

fn values(param: &Param) -> String {
    match param.kind {
        ValueKind::Text => "text".to_string(),
        ValueKind::Flag => "0, 1".to_string(),
        ValueKind::Choice { low, high } => (low..=high).map(|n| n.to_string()).collect::<Vec<_>>().join(", "),
        ValueKind::Int { low, high: i64::MAX } => format!("{low} and more"),
        ValueKind::Int { low: i64::MIN, high } => format!("up to {high}"),
        ValueKind::Int { low, high } => format!("{low} … {high}"),
    }
}
