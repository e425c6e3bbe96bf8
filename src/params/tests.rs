use super::conf::{self, ConfSetting};
use super::source::{Environment, Files, ValueSource};
use super::*;
use proptest::prelude::*;
use std::io::{Error, ErrorKind};
use std::path::Path;

/// An environment and files that exist only here.
#[derive(Default)]
struct Fake {
    variables: HashMap<String, String>,
    files: HashMap<String, Vec<u8>>,
}

impl Fake {
    fn with(variables: &[(&str, &str)], files: &[(&str, &str)]) -> Fake {
        let own = |(a, b): &(&str, &str)| ((*a).to_string(), (*b).to_string());
        let bytes = |(a, b): &(&str, &str)| ((*a).to_string(), b.as_bytes().to_vec());
        Fake { variables: variables.iter().map(own).collect(), files: files.iter().map(bytes).collect() }
    }
}

impl Files for Fake {
    fn read(&self, path: &Path, _limit: u64) -> std::io::Result<Vec<u8>> {
        self.files.get(&path.display().to_string()).cloned().ok_or_else(|| Error::from(ErrorKind::NotFound))
    }
}

impl Environment for Fake {
    fn get(&self, name: &str) -> Option<String> {
        self.variables.get(name).cloned()
    }

    fn set(&mut self, name: &str, value: &str) {
        assert!(!name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0'));
        self.variables.insert(name.to_string(), value.to_string());
    }
}

fn snapshot_of(variables: &[(&str, &str)]) -> Snapshot {
    let fake = Fake::with(variables, &[]);
    Snapshot::of(|name| fake.get(name))
}

/// C's own examples of strtoll with base 0: what stands behind the digits is ignored, a unit such as M too.
#[test]
fn integers_are_read_as_c_reads_them() {
    for (text, value) in [
        ("0", Some(0)),
        ("-2", Some(-2)),
        ("+7", Some(7)),
        ("  42abc", Some(42)),
        ("0x10", Some(16)),
        ("0X1fz", Some(31)),
        ("0x", Some(0)),
        ("017", Some(15)),
        ("089", Some(0)),
        ("9223372036854775807", Some(i64::MAX)),
        ("-9223372036854775808", Some(i64::MIN)),
        ("9223372036854775808", None),
        ("abc", None),
        ("", None),
        ("-", None),
        ("1e9", Some(1)),
        ("1M", Some(1)),
    ] {
        assert_eq!(integer(text), value, "{text}");
    }
}

#[test]
fn the_files_win_over_nothing_but_defaults() {
    let user = "NCCL_BUFFSIZE=1\nNCCL_NTHREADS=2\n";
    let host = "NCCL_BUFFSIZE=3\nNCCL_ALGO=ring\n";
    let mut fake =
        Fake::with(&[("HOME", "/u"), ("NCCL_NTHREADS", "4")], &[("/u/.nccl.conf", user), ("/etc/nccl.conf", host)]);
    let (origins, notes) = conf::apply(&mut fake);
    assert_eq!(fake.get("NCCL_BUFFSIZE").as_deref(), Some("1"));
    assert_eq!(fake.get("NCCL_NTHREADS").as_deref(), Some("4"));
    assert_eq!(fake.get("NCCL_ALGO").as_deref(), Some("ring"));
    assert_eq!(origins["NCCL_ALGO"], ValueSource::File { path: "/etc/nccl.conf".to_string(), line: 2 });
    assert!(!origins.contains_key("NCCL_NTHREADS"));
    assert_eq!(notes.iter().filter(|n| n.contains("is ignored")).count(), 2, "{notes:?}");
    // A file that is named replaces the user's, and must exist.
    let mut fake = Fake::with(&[("HOME", "/u"), ("NCCL_CONF_FILE", "/none")], &[("/u/.nccl.conf", user)]);
    let (origins, notes) = conf::apply(&mut fake);
    assert!(origins.is_empty() && notes[0].contains("/none is not used"), "{notes:?}");
}

#[test]
fn a_conf_file_is_read_to_the_letter() {
    let (settings, problems) = conf::parse(b"A=b=c\r\n#X=1\nno value\n=2\nD=\n E=3\nF= \"g\" ");
    let setting =
        |name: &str, value: &str, line| ConfSetting { name: name.to_string(), value: value.to_string(), line };
    assert_eq!(settings, [setting("A", "b=c", 1), setting("D", "", 5), setting("F", " \"g\" ", 7)]);
    assert_eq!(problems.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [4, 6]);
}

#[test]
fn snapshots_know_values_defaults_and_ranges() {
    let p = snapshot_of(&[
        ("NCCL_BUFFSIZE", "7"),
        ("NCCL_P2P_DISABLE", "true"),
        ("NCCL_COMM_BLOCKING", "2"),
        ("NCCL_SOCKET_IFNAME", "eth0"),
        ("NCCL_NET", ""),
        ("OXCCL_BOOTSTRAP_TIMEOUT", "30"),
    ]);
    assert_eq!(p.int(BUFFSIZE), 1024);
    assert!(p.flag(P2P_DISABLE) && !p.flag(SHM_DISABLE));
    assert_eq!(p.set_int(COMM_BLOCKING), None);
    assert_eq!(p.text(SOCKET_IFNAME), Some("eth0"));
    assert_eq!(p.text(NET), None);
    assert_eq!(p.int(BOOTSTRAP_TIMEOUT), 30);
    assert_eq!(p.int(NTHREADS), -2);
    assert_eq!(p.source(BUFFSIZE), Some(&ValueSource::Environment));
    assert_eq!(p.source(NTHREADS), None);
}

#[test]
fn what_is_read_once_stays_and_the_rest_does_not() {
    let first = Fake::with(&[("NCCL_BUFFSIZE", "4096"), ("NCCL_ALGO", "ring")], &[]);
    let cached = read_all(&|name| first.get(name), &mut Vec::new(), &HashMap::new());
    let later = |extra: &[(&str, &str)]| {
        let mut fake = Fake::with(&[("NCCL_BUFFSIZE", "8192"), ("NCCL_ALGO", "tree")], &[]);
        fake.variables.extend(extra.iter().map(|(a, b)| ((*a).to_string(), (*b).to_string())));
        Snapshot::take(&|name| fake.get(name), Some(&cached), &HashMap::new())
    };
    assert_eq!((later(&[]).int(BUFFSIZE), later(&[]).text(ALGO)), (4096, Some("tree")));
    assert_eq!(later(&[("NCCL_NO_CACHE", "NCCL_X,NCCL_BUFFSIZE")]).int(BUFFSIZE), 8192);
    assert_eq!(later(&[("NCCL_NO_CACHE", "all")]).int(BUFFSIZE), 8192);
}

#[test]
fn the_table_is_sound() {
    let mut names: Vec<&str> = TABLE.iter().map(|p| p.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), TABLE.len(), "a name stands twice");
    for param in &TABLE {
        assert!(param.name.starts_with("NCCL_") || param.name.starts_with("OXCCL_"), "{}", param.name);
        assert!(!param.doc.is_empty() && !param.doc.contains('\n'), "{}", param.name);
        let default = param.default_text();
        let kept = parse::read(param, &default).and_then(|r| r.number);
        assert!(param.kind == ValueKind::Text || integer(&default).is_none_or(|n| kept == Some(n)), "{}", param.name);
    }
    assert_eq!(TABLE.iter().filter(|p| p.api == Api::Published).count(), 7);
    assert_eq!(TABLE.iter().filter(|p| p.api == Api::Private).count(), 3);
}

/// The page is made from the table; `OXCCL_BLESS=1 cargo test` writes it.
#[test]
fn the_documentation_is_the_tables() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/PARAMETERS.md");
    if std::env::var_os("OXCCL_BLESS").is_some() {
        std::fs::create_dir_all(path.with_file_name("")).expect("docs/ can be made");
        std::fs::write(&path, markdown()).expect("docs/PARAMETERS.md can be written");
    }
    let page = std::fs::read_to_string(&path).expect("docs/PARAMETERS.md");
    assert!(
        page == markdown(),
        "docs/PARAMETERS.md is not the table's: OXCCL_BLESS=1 cargo test --lib params writes it"
    );
}

#[test]
fn policies() {
    assert_eq!(cta_policy("default"), Some(0));
    assert_eq!(cta_policy("EFFICIENCY | zero"), Some(3));
    assert_eq!(cta_policy("2"), Some(2));
    assert_eq!(cta_policy("ZERO|"), None);
}

proptest! {
    #[test]
    fn numbers_survive_the_way_through_text(number in any::<i64>(), tail in "[ g-wyz]*") {
        prop_assert_eq!(integer(&format!(" {number}{tail}")), Some(number));
        if number >= 0 {
            prop_assert_eq!(integer(&format!("0x{number:x}{tail}")), Some(number));
            prop_assert_eq!(integer(&format!("0{number:o}{tail}")), Some(number));
        }
    }

    #[test]
    fn no_text_breaks_the_parsers(text in any::<String>()) {
        integer(&text);
        cta_policy(&text);
        parse::lists_name(&text, "NCCL_ALGO");
        for param in &TABLE {
            let reading = parse::read(param, &text);
            parse::note(param, &text, reading.as_ref(), &ValueSource::Environment);
            if let (ValueKind::Int { low, high }, Some(n)) = (param.kind, reading.and_then(|r| r.number)) {
                prop_assert!((low..=high).contains(&n) || n == param.default_int());
            }
        }
    }

    #[test]
    fn no_file_breaks_the_parser(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let mut fake = Fake::with(&[("NCCL_CONF_FILE", "f")], &[]);
        fake.files.insert("f".to_string(), bytes);
        conf::apply(&mut fake);
    }

    #[test]
    fn settings_come_back_from_a_file(
        settings in proptest::collection::vec(("[A-Z_]{1,20}", "[ -~]{0,40}"), 0..20),
        ending in prop::sample::select(vec!["\n", "\r\n"]),
    ) {
        let file: String = settings.iter().map(|(name, value)| format!("{name}={value}{ending}")).collect();
        let (found, problems) = conf::parse(file.as_bytes());
        let found: Vec<_> = found.into_iter().map(|s| (s.name, s.value)).collect();
        prop_assert_eq!(found, settings);
        prop_assert!(problems.is_empty());
    }
}
