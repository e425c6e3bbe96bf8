//! What the root compares: whether the ranks fit together, and how it names them.

use std::collections::BTreeMap;

use super::super::checkin::{CheckIn, CheckInSettings};
use super::super::failure::Failure;
use super::super::{Conn, Level, MAX_RANKS, ranks};
use super::Root;
use crate::bootstrap::id::{show, show_ip};

impl Root {
    pub(super) fn missing(&self) -> Vec<u32> {
        (0u32..).zip(&self.seats).filter(|(_, seat)| seat.is_none()).map(|(rank, _)| rank).collect()
    }

    /// Why a check-in does not fit the ones before it.
    pub(super) fn objection(&self, conn: Conn, record: &CheckIn) -> Option<Failure> {
        let from = self.visits.get(&conn).map_or(String::new(), |visit| show_ip(visit.from.ip()));
        let rank = record.rank;
        let who = format!("rank {rank} ({}, {from})", record.process);
        if record.nranks == 0 || record.nranks > MAX_RANKS || rank >= record.nranks {
            let (number, nranks) = (rank.cast_signed(), record.nranks);
            let text = format!(
                "rank {number} ({}, {from}) is out of range: it says that there are {nranks} ranks",
                record.process
            );
            return Some(Failure::usage(Some(rank), text));
        }
        let first = self.seats.iter().flatten().next()?;
        if record.nranks as usize != self.seats.len() {
            let text = format!(
                "the ranks do not agree how many they are: {} expects {} ranks, {who} expects {}",
                self.name(first.record.rank),
                self.seats.len(),
                record.nranks
            );
            return Some(Failure::usage(Some(rank), text));
        }
        if let Some(other) = &self.seats[rank as usize] {
            let text = format!(
                "rank {rank} has joined twice: from {} ({}) and from {} ({from}); two processes have the same rank, or one ncclUniqueId is used for two communicators",
                other.record.process,
                show_ip(other.from.ip()),
                record.process
            );
            return Some(Failure::usage(Some(rank), text));
        }
        (record.version != first.record.version).then(|| {
            let (other, theirs) = (first.record.rank, first.record.version);
            let ours = record.version;
            Failure::usage(
                Some(rank),
                format!("Mismatched NCCL version detected : rank {rank} version {ours} rank {other} version {theirs}"),
            )
        })
    }

    /// A rank that listens on the loopback address of another host cannot be reached.
    pub(super) fn loopback_across_hosts(&self) -> Option<Failure> {
        let mut seats = self.seats.iter().flatten();
        let local = seats.clone().find(|seat| seat.record.entry.address.ip().is_loopback())?;
        let remote =
            seats.find(|seat| !seat.record.entry.address.ip().is_loopback() && seat.from.ip() != local.from.ip())?;
        let (rank, entry) = (local.record.rank, &local.record.entry);
        let text = format!(
            "{} advertises {} on interface {}, which {} cannot reach: set NCCL_SOCKET_IFNAME on that rank to an interface that all hosts share",
            self.name(rank),
            show(entry.address),
            entry.interface,
            self.name(remote.record.rank)
        );
        Some(Failure::usage(Some(rank), text))
    }

    /// One warning per setting that is not the same everywhere.
    pub(super) fn warn_about_settings(&mut self) {
        let mut groups: BTreeMap<&CheckInSettings, Vec<u32>> = BTreeMap::new();
        for seat in self.seats.iter().flatten() {
            groups.entry(&seat.record.settings).or_default().push(seat.record.rank);
        }
        if groups.len() < 2 {
            return;
        }
        for text in differences(&groups) {
            self.log(Level::Warn, text);
        }
    }

    /// A rank with what is known about it.
    pub(super) fn name(&self, rank: u32) -> String {
        match self.seats.get(rank as usize).and_then(Option::as_ref) {
            Some(seat) => format!("rank {rank} ({}, {})", seat.record.process, show_ip(seat.from.ip())),
            None => format!("rank {rank}"),
        }
    }

    /// Who is in and who is not.
    pub(super) fn attendance(&self) -> String {
        let missing = self.missing();
        format!("{} of {} ranks have joined, missing: {}", self.seated, self.seats.len(), ranks::name(&missing))
    }
}

/// One line per setting that is not the same everywhere: the variable, each value, and who has it.
fn differences(groups: &BTreeMap<&CheckInSettings, Vec<u32>>) -> Vec<String> {
    let mut values: BTreeMap<&str, BTreeMap<Option<&str>, Vec<u32>>> = BTreeMap::new();
    for settings in groups.keys() {
        for (name, _) in *settings {
            values.entry(name).or_default();
        }
    }
    for (settings, members) in groups {
        for (name, by_value) in &mut values {
            let value = settings.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str());
            by_value.entry(value).or_default().extend(members);
        }
    }
    let different = values.into_iter().filter(|(_, by_value)| by_value.len() > 1);
    different
        .map(|(name, by_value)| {
            format!("Bootstrap: {name} is not the same on all ranks: {}", describe_values(by_value))
        })
        .collect()
}

fn describe_values(by_value: BTreeMap<Option<&str>, Vec<u32>>) -> String {
    let mut sides: Vec<(Option<&str>, Vec<u32>)> = by_value.into_iter().collect();
    for (_, members) in &mut sides {
        members.sort_unstable();
    }
    sides.sort_by_key(|(_, members)| std::cmp::Reverse(members.len()));
    let texts: Vec<String> = sides
        .iter()
        .map(|(value, members)| {
            let value = value.map_or("unset".to_string(), |value| format!("'{value}'"));
            format!("{value} on {}", ranks::name(members))
        })
        .collect();
    texts.join(", ")
}
