//! What the library takes from the CUDA driver is in the oldest one that it accepts.

use std::fs;
use std::path::Path;

/// The oldest driver, as `src/device/driver.rs` has it.
const OLDEST: u32 = 12000;

fn source(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The names in the driver tables: what stands in quotes behind a `=`, with the argument types behind it.
fn needed(driver: &str) -> Vec<&str> {
    let rows = driver.lines().filter_map(|line| line.trim_start().strip_prefix("fn ")?.split_once(" = \"cu"));
    rows.map(|(_, rest)| rest.split('"').next().unwrap_or(rest)).collect()
}

/// The CUDA version that brought a symbol, of softcuda's list (name without `cu`, version of each form).
fn since(versions: &str, symbol: &str) -> Option<u32> {
    let (name, form) = match symbol.rsplit_once("_v") {
        Some((name, form)) => (name, form.parse::<usize>().ok()?),
        None => (symbol, 1),
    };
    let row = versions.lines().find_map(|line| line.trim().strip_prefix(&format!("(\"cu{name}\", &[")))?;
    row.split(']').next()?.split(',').nth(form - 1)?.trim().parse().ok()
}

#[test]
fn the_oldest_driver_has_all_that_is_needed() {
    let (driver, versions) = (source("src/device/driver.rs"), source("softcuda/src/abi/versions.rs"));
    assert!(driver.contains(&format!("const OLDEST: c_int = {OLDEST};")));
    let needed = needed(&driver);
    assert!(needed.len() > 50 && needed.contains(&"IpcOpenMemHandle_v2"), "{needed:?}");
    for symbol in needed {
        let since = since(&versions, symbol).unwrap_or_else(|| panic!("cu{symbol} is not in softcuda's list"));
        assert!(since <= OLDEST, "cu{symbol} came with CUDA {since}");
    }
}
