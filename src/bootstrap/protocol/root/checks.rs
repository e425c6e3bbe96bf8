//! What the root compares: whether the ranks fit together, and how it names them.

use std::collections::BTreeMap;

use super::super::checkin::{CheckIn, CheckInSettings};
use super::super::failure::Failure;
use super::super::{Conn, Level, MAX_RANKS, ranks};
use super::Root;
use super::others::{different_algorithms, different_ids, unreachable_address};
use crate::bootstrap::id::show_ip;

impl Root {
    pub(super) fn missing(&self) -> Vec<u32> {
        let first = self.others.as_ref().map_or(0, |others| others.place.block(others.nranks).start);
        (first..).zip(&self.seats).filter(|(_, seat)| seat.is_none()).map(|(rank, _)| rank).collect()
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
        if record.place.count > record.nranks || !record.place.block(record.nranks).contains(&rank) {
            let (index, count) = (record.place.index, record.place.count);
            return Some(Failure::usage(
                Some(rank),
                format!("{who} has come to root {index} of {count}, which is not its own"),
            ));
        }
        let first = self.seats.iter().flatten().next()?;
        let (place, nranks) = self.others.as_ref().map(|others| (others.place, others.nranks))?;
        if record.nranks != nranks {
            let text = format!(
                "the ranks do not agree how many they are: {} expects {} ranks, {who} expects {}",
                self.name(first.record.rank),
                nranks,
                record.nranks
            );
            return Some(Failure::usage(Some(rank), text));
        }
        if record.place != place {
            let text = different_ids(&self.name(first.record.rank), place.count, &who, record.place.count);
            return Some(Failure::usage(Some(rank), text));
        }
        if let Some(other) = self.seat(rank) {
            let text = format!(
                "rank {rank} has joined twice: from {} ({}) and from {} ({from}); two processes have the same rank, or one ncclUniqueId is used for two communicators",
                other.record.process,
                show_ip(other.from.ip()),
                record.process
            );
            return Some(Failure::usage(Some(rank), text));
        }
        if record.algorithm != first.record.algorithm {
            let name = self.name(first.record.rank);
            let text = different_algorithms((&name, first.record.algorithm), (&who, record.algorithm));
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
        Some(unreachable_address(rank, &self.name(rank), entry, &self.name(remote.record.rank)))
    }

    /// One warning per setting that is not the same everywhere.
    pub(super) fn warn_about_settings(&mut self) {
        let mut groups: BTreeMap<&CheckInSettings, Vec<u32>> = BTreeMap::new();
        for seat in self.seats.iter().flatten() {
            groups.entry(&seat.record.settings).or_default().push(seat.record.rank);
        }
        let groups: BTreeMap<CheckInSettings, Vec<u32>> =
            groups.into_iter().map(|(settings, ranks)| (settings.clone(), ranks)).collect();
        self.warn_about(&groups.iter().map(|(settings, ranks)| (settings, ranks.clone())).collect());
    }

    /// The same for ranks that are grouped by their settings.
    pub(super) fn warn_about(&mut self, groups: &BTreeMap<&CheckInSettings, Vec<u32>>) {
        if groups.len() < 2 {
            return;
        }
        for text in differences(groups) {
            self.log(Level::Warn, text);
        }
    }

    /// A rank with what is known about it.
    pub(super) fn name(&self, rank: u32) -> String {
        match self.seat(rank) {
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
