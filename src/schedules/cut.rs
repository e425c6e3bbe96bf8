//! How a call is cut into work items: channels, pieces, and the steps and links that each of them names.

use super::Half;
use super::device_schedules::{DeviceSchedule, DeviceSchedules};
use super::link_tables::{LinkTable, LinkTables};
use crate::error::Error;
use crate::plan::LinkClass;
use crate::plan::algorithm::Algo;
use crate::plan::call::{DataType, Func};
use crate::plan::layout::{Proto, Work, work_flag};
use crate::plan::operator::Operator;
use crate::plan::shape::{Shape, shape};
use crate::plan::work::{Geometry, Request};
use crate::plan::zero_copy;
use crate::tuning::{self, Choice};

/// A collective, as schedules are asked for it.
#[derive(Clone, Copy, Debug)]
pub struct Collective {
    /// The function.
    pub func: Func,
    /// Elements, as the function counts them.
    pub count: u64,
    /// The type of these elements.
    pub datatype: DataType,
    /// The root; 0 where there is none.
    pub root: u32,
}

impl Collective {
    /// Bytes of the larger buffer.
    pub fn bytes(&self, nranks: u32) -> u64 {
        let blocks = if self.has_blocks() { u64::from(nranks) } else { 1 };
        self.count.saturating_mul(blocks).saturating_mul(self.datatype.size() as u64)
    }

    /// Whether every chunk has the call's count of elements; else the count is cut.
    fn has_blocks(&self) -> bool {
        shape(self.func, 1) != Shape::Divided
    }
}

/// A call, cut into work.
#[derive(Clone, Copy, Debug)]
pub struct Cut<'a> {
    /// How it is carried out.
    choice: Choice,
    geometry: Geometry,
    /// By channel; at least one. Further channels repeat them.
    schedules: &'a [DeviceSchedule],
    table: LinkTable,
    /// Further [`work_flag`]s.
    flags: u8,
}

/// A collective that ranks carry out without slots if all of them can.
#[derive(Clone, Copy, Debug)]
pub struct ZeroCopyCuts<'a> {
    /// How, if they can; the work items lack the offers.
    pub direct: Cut<'a>,
    /// How else.
    pub slots: Cut<'a>,
}

impl Cut<'_> {
    /// The protocol of its links.
    pub fn protocol(&self) -> Proto {
        self.choice.protocol
    }

    /// The number of channels that have something to do.
    pub fn channels(&self) -> u32 {
        self.geometry.nchannels
    }

    /// Whether all channels have the same steps.
    pub fn is_uniform(&self) -> bool {
        self.schedules.len() == 1
    }

    /// The work item of a part of the data, on a channel's links; complete but for the user's buffers.
    pub fn work(&self, part: u32, channel: u32, datatype: DataType, operator: &Operator) -> Work {
        let work = self.geometry.work(part, datatype, operator);
        let schedule = self.schedules[channel as usize % self.schedules.len()];
        Work {
            flags: work.flags | self.flags,
            steps: schedule.steps,
            nsteps: schedule.nsteps,
            links: self.table.channel(channel),
            // The schedule has been checked: a step names its links by 8 bits.
            nlinks: self.table.links as u16,
            ..work
        }
    }

    /// One item for all parts ([`crate::plan::layout::launch_flag::ROWS`]), the first of which is on channel `first`.
    /// Only where it [is uniform](Cut::is_uniform).
    pub fn row(&self, first: u32, datatype: DataType, operator: &Operator) -> Work {
        Work { first: first as u16, ..self.work(0, 0, datatype, operator) }
    }

    /// Which links it needs: their class, protocol and number of channels.
    pub(super) fn needs(&self) -> (LinkClass, Proto, u32) {
        let channels = if self.table.links == 0 { 0 } else { self.channels() };
        (self.schedules[0].class, self.choice.protocol, channels)
    }
}

/// What calls are cut from: steps, and the places of links.
pub(super) struct CutSource {
    pub schedules: DeviceSchedules,
    pub tables: LinkTables,
}

impl CutSource {
    /// [`super::ScheduleIndex::cut`].
    pub(super) fn cut(&self, choice: Choice, call: &Collective) -> Result<Cut<'_>, Error> {
        let schedules = self.schedules.collective(call.func, choice.algorithm, call.root);
        let schedules = schedules.ok_or_else(|| Error::Internal(format!("no schedule for {call:?} by {choice:?}")))?;
        self.cut_as(choice, schedules, call)
    }

    /// [`super::ScheduleIndex::zero_copy`].
    pub(super) fn zero_copy<'a>(&'a self, call: &Collective, cut: &Cut<'a>) -> Result<Option<ZeroCopyCuts<'a>>, Error> {
        let algorithm = zero_copy::algo(call.func);
        let Some(schedules) = self.schedules.agreed(call.func, call.root) else { return Ok(None) };
        let mut direct = self.cut_as(Choice { algorithm, ..cut.choice }, schedules, call)?;
        direct.geometry.piece = direct.geometry.part;
        direct.flags = work_flag::OFFER;
        // Channels come to their own decisions, so each must move the same elements either way.
        let fallback = match direct.channels() == 1 || cut.schedules[0].nchunks == schedules[0].nchunks {
            true => cut.schedules,
            false => self.schedules.collective(call.func, algorithm, call.root).unwrap_or(cut.schedules),
        };
        let choice = if fallback == cut.schedules { cut.choice } else { direct.choice };
        let channels = direct.channels();
        Ok(Some(ZeroCopyCuts { direct, slots: self.cut_as(Choice { channels, ..choice }, fallback, call)? }))
    }

    /// [`super::ScheduleIndex::cut_half`].
    pub(super) fn cut_half(
        &self,
        half: Half,
        protocol: Proto,
        count: u64,
        datatype: DataType,
    ) -> Result<Cut<'_>, Error> {
        let call = Collective { func: Func::Send, count, datatype, root: 0 };
        let table = self.tables.half(half, protocol);
        // Both ranks come to the same number.
        let channels = tuning::channels(call.bytes(1), table.channels);
        let choice = Choice { algorithm: Algo::Direct, protocol, channels };
        cut_with(table, choice, std::slice::from_ref(self.schedules.half(half)), &call)
    }

    /// [`super::ScheduleIndex::half_without_slots`].
    pub(super) fn half_without_slots<'a>(&'a self, half: Half, cut: &Cut<'a>) -> Option<Cut<'a>> {
        let schedule = self.schedules.half_without_slots(half)?;
        let geometry = Geometry { piece: cut.geometry.part, ..cut.geometry };
        let flags = work_flag::OFFER | work_flag::PULL;
        Some(Cut { geometry, schedules: std::slice::from_ref(schedule), flags, ..*cut })
    }

    fn cut_as<'a>(&self, choice: Choice, schedules: &'a [DeviceSchedule], call: &Collective) -> Result<Cut<'a>, Error> {
        let Some(schedule) = schedules.first() else {
            return Err(Error::Internal(format!("no channel has a schedule for {call:?}")));
        };
        cut_with(self.tables.get_or_alone(schedule.class, choice.protocol), choice, schedules, call)
    }
}

/// Cuts a call for the links of a table. There is a schedule.
fn cut_with<'a>(
    table: LinkTable,
    choice: Choice,
    schedules: &'a [DeviceSchedule],
    call: &Collective,
) -> Result<Cut<'a>, Error> {
    let geometry = Geometry::new(&Request {
        count: call.count,
        datatype: call.datatype,
        nchunks: schedules[0].nchunks,
        blocks: call.has_blocks(),
        max_channels: table.channels.min(choice.channels),
        slot_bytes: u64::from(table.slot_bytes),
        proto: choice.protocol,
        // Whoever chose has weighed that.
        min_channel_bytes: 1,
    })?;
    Ok(Cut { choice, geometry, schedules, table, flags: 0 })
}

#[cfg(test)]
mod tests;
