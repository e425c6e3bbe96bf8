//! Configuration files: where they are looked for, what a line says, and what the environment overrides.

use crate::log::{program, say};
use crate::tool::{Folder, stderr, stdout};

/// What a getenv of the program sees after the first initialisation, and the log.
fn read(variables: &[(&str, &str)], names: &[&str]) -> Option<(Vec<String>, String)> {
    let mut args = vec!["init"];
    names.iter().for_each(|name| args.extend(["get", name]));
    let all: Vec<(&str, &str)> = [("NCCL_DEBUG", "INFO")].iter().chain(variables).copied().collect();
    let run = say(&all, &args)?;
    let values = stderr(&run).lines().filter(|l| !l.contains("NCCL WARN")).map(str::to_string).collect();
    Some((values, stdout(&run)))
}

#[test]
fn a_file_sets_what_the_environment_does_not() {
    let Some(_) = program() else { return };
    let folder = Folder::new();
    let path = folder.write(
        "nccl.conf",
        "# a comment\nNCCL_BUFFSIZE=2097152\nNCCL_NTHREADS=128\nNCCL_BUFFSIZE=1\nnonsense\n\nFOREIGN=a=b \"c\"\n",
    );
    let variables = [("NCCL_CONF_FILE", path.as_str()), ("NCCL_NTHREADS", "256")];
    let Some((values, log)) = read(&variables, &["NCCL_BUFFSIZE", "NCCL_NTHREADS", "FOREIGN", "nonsense"]) else {
        return;
    };
    assert_eq!(values, ["2097152", "256", "a=b \"c\"", "unset"]);
    for line in [
        format!("read 4 settings from {path}\n"),
        format!("{path}:3: NCCL_NTHREADS is ignored, it is already set by environment\n"),
        format!("{path}:4: NCCL_BUFFSIZE is ignored, it is already set by {path}:2\n"),
        format!("NCCL_BUFFSIZE set by {path}:2 to 2097152.\n"),
        "NCCL_NTHREADS set by environment to 256.\n".to_string(),
        format!("NCCL_CONF_FILE set by environment to {path}\n"),
    ] {
        assert!(log.contains(&format!("NCCL INFO {line}")), "{line} is missing in {log}");
    }
}

#[test]
fn the_users_file_is_used_unless_another_is_named() {
    let Some(_) = program() else { return };
    let folder = Folder::new();
    folder.write(".nccl.conf", "NCCL_BUFFSIZE=4096");
    let named = folder.write("named", "NCCL_BUFFSIZE=8192");
    let home = folder.path("").display().to_string();
    for (variables, expected) in [
        (vec![("HOME", home.as_str())], "4096"),
        (vec![("HOME", home.as_str()), ("NCCL_CONF_FILE", "")], "4096"),
        (vec![("HOME", home.as_str()), ("NCCL_CONF_FILE", named.as_str())], "8192"),
        (vec![], "unset"),
        (vec![("HOME", "")], "unset"),
    ] {
        let Some((values, _)) = read(&variables, &["NCCL_BUFFSIZE"]) else { return };
        assert_eq!(values, [expected], "{variables:?}");
    }
}

#[test]
fn odd_files_are_read_as_far_as_they_make_sense() {
    let Some(_) = program() else { return };
    let folder = Folder::new();
    let long = format!("NCCL_BUFFSIZE={}\nNCCL_NTHREADS=64", "9".repeat(100_000));
    for (name, bytes, expected, told) in [
        ("bom", &b"\xef\xbb\xbfNCCL_BUFFSIZE=4096\n"[..], ["4096", "unset"], "read 1 settings"),
        ("crlf", b"NCCL_BUFFSIZE=4096\r\nNCCL_NTHREADS=64\r\n", ["4096", "64"], "read 2 settings"),
        ("blanks", b"NCCL_BUFFSIZE =4096\n NCCL_NTHREADS=64\n", ["unset", "unset"], "sets nothing"),
        ("indented", b"  # NCCL_BUFFSIZE=4096\nNCCL_NTHREADS= 64", ["unset", " 64"], "sets nothing"),
        ("long", long.as_bytes(), ["unset", "64"], "is ignored"),
        ("nul", b"NCCL_BUFFSIZE=40\x0096\nNCCL_NTHREADS=64", ["unset", "64"], "is ignored"),
        ("noname", b"=4096\nNCCL_NTHREADS=64", ["unset", "64"], "is ignored"),
        ("bytes", b"NCCL_BUFFSIZE=4096\nX=\xff\xfe\n", ["4096", "unset"], "read 2 settings"),
        ("empty", b"", ["unset", "unset"], "read 0 settings"),
    ] {
        let path = folder.write(name, bytes);
        let variables = [("NCCL_CONF_FILE", path.as_str())];
        let Some((values, log)) = read(&variables, &["NCCL_BUFFSIZE", "NCCL_NTHREADS"]) else { return };
        assert_eq!(values, expected, "{name}: {log}");
        assert!(log.contains(told), "{name}: {log}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_told_and_no_more() {
    let Some(_) = program() else { return };
    let folder = Folder::new();
    let fifo = folder.path("fifo").display().to_string();
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
    let big = folder.write("big", vec![b'#'; 2 << 20]);
    for path in [folder.path("").display().to_string(), "/nowhere/at/all".to_string(), fifo, big] {
        let Some((_, log)) = read(&[("NCCL_CONF_FILE", &path)], &[]) else { return };
        assert!(log.contains(&format!("configuration file {path} is not used: ")), "{log}");
    }
}

#[test]
fn a_file_can_turn_the_log_on() {
    let Some(_) = program() else { return };
    let folder = Folder::new();
    let path = folder.write("conf", "NCCL_DEBUG=INFO\nNCCL_DEBUG_SUBSYS=ENV\n");
    let Some(run) = say(&[("NCCL_CONF_FILE", &path)], &["init"]) else { return };
    assert!(stdout(&run).contains(&format!("NCCL_DEBUG set by {path}:1 to INFO")), "{}", stdout(&run));
}

#[test]
fn values_that_make_no_sense_are_told_with_their_source() {
    for (value, told) in [
        ("1048576", "NCCL_BUFFSIZE set by environment to 1048576."),
        ("0x100000", "NCCL_BUFFSIZE set by environment to 1048576."),
        (" 4096 bytes", "NCCL_BUFFSIZE set by environment to 4096."),
        ("-2", "NCCL_BUFFSIZE set by environment to -2."),
        ("1M", "NCCL_BUFFSIZE set by environment to 1024: 1M is out of range."),
        ("-7", "NCCL_BUFFSIZE set by environment to 1024: -7 is out of range."),
        ("abc", "Invalid value abc for NCCL_BUFFSIZE (set by environment), using default -2."),
        (
            "99999999999999999999",
            "Invalid value 99999999999999999999 for NCCL_BUFFSIZE (set by environment), using default -2.",
        ),
    ] {
        let Some((_, log)) = read(&[("NCCL_BUFFSIZE", value)], &[]) else { return };
        assert!(log.contains(&format!("NCCL INFO {told}\n")), "{value}: {log}");
    }
    let Some((_, log)) = read(&[("NCCL_IB_HCA", "mlx5"), ("NCCL_TOPO_DUMP_FILE_RANK", "3")], &[]) else { return };
    assert!(
        log.contains("NCCL_IB_HCA set by environment to mlx5. It has no effect in this version of oxccl.\n"),
        "{log}"
    );
    assert!(log.contains("NCCL_TOPO_DUMP_FILE_RANK set by environment to 3. It has no effect"), "{log}");
}
