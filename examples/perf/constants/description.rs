//! The description that is written: lines that `perf predict --machine` reads, each with how its number was found.

use nccl::plan::timing::MachineModel;

/// Lines so far. What they say together is a machine.
#[derive(Clone, Debug, Default)]
pub struct Description(String);

impl Description {
    /// A comment.
    pub fn note(&mut self, text: &str) {
        self.0 += &format!("# {text}\n");
    }

    /// What a key is, in the unit of the description, and how that was found.
    pub fn set(&mut self, key: &str, value: impl std::fmt::Display, how: &str) {
        let said = format!("{key} = {value}");
        self.0 += &if how.is_empty() { format!("{said}\n") } else { format!("{said:<34}# {how}\n") };
    }

    /// A number, as exactly as it can have been measured.
    pub fn number(&mut self, key: &str, value: f64, how: &str) {
        self.set(key, format!("{value:.4}"), how);
    }

    /// The machine that the lines describe.
    ///
    /// # Errors
    /// What is wrong with a line.
    pub fn machine(&self) -> Result<MachineModel, String> {
        MachineModel::parse(&self.0).map_err(|error| error.to_string())
    }

    /// All lines.
    pub fn text(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut description = Description::default();
        description.note("a machine = nothing");
        description.set("base", "4xA100-pcie", "what is not measured is as there");
        description.set("bandwidth", f64::INFINITY, "links are no limit");
        description.number("launch", 5.25, "measured");
        let machine = description.machine().expect("a machine");
        assert_eq!((machine.ranks, machine.launch, machine.path.bandwidth), (4, 5.25, f64::INFINITY));
        description.number("speed", 1.0, "no such key");
        assert!(description.machine().expect_err("refused").contains("line 5"));
    }
}
