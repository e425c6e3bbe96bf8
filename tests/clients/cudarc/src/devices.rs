//! One thread that drives all devices: `Comm::from_devices`, and groups over several communicators.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use cudarc::nccl::safe::{Comm, Id, ReduceOp, group_end, group_start};
use cudarc::nccl::{result, sys};

use crate::checks::Checks;
use crate::fails::{Fails, nccl};
use crate::number::{gathered, input, reduced};

const COUNT: usize = 50_003;

/// A stream for each of the first devices.
fn streams(devices: usize) -> Result<Vec<Arc<CudaStream>>, Fails> {
    (0..devices).map(|device| Ok(CudaContext::new(device)?.new_stream()?)).collect()
}

/// Devices' memory, filled by what `data` gives for a rank.
fn on_devices(streams: &[Arc<CudaStream>], data: impl Fn(usize) -> Vec<f32>) -> Result<Vec<CudaSlice<f32>>, Fails> {
    streams.iter().enumerate().map(|(rank, stream)| Ok(stream.clone_htod(&data(rank))?)).collect()
}

/// All checks of this module, with `devices` devices.
pub fn all(devices: usize, checks: &Checks) -> Result<(), Fails> {
    checks.equal("version", nccl(result::get_nccl_version())? >= 22_800, true);
    let streams = streams(devices)?;
    let comms = nccl(Comm::from_devices(streams.clone()))?;
    for (rank, comm) in comms.iter().enumerate() {
        let place = (comm.rank(), comm.world_size(), comm.ordinal());
        checks.equal(&format!("devices: place of rank {rank}"), place, (rank, devices, rank));
    }
    sums(&streams, &comms, checks)?;
    exchange(&streams, &comms, checks)?;
    refusals(&streams[0], checks)
}

/// Two calls for each communicator in one group.
fn sums(streams: &[Arc<CudaStream>], comms: &[Comm], checks: &Checks) -> Result<(), Fails> {
    let ranks = comms.len();
    let send = on_devices(streams, |rank| input(rank, COUNT))?;
    let mut sums = on_devices(streams, |_| vec![0.0; COUNT])?;
    let mut all = on_devices(streams, |_| vec![0.0; ranks * COUNT])?;
    nccl(group_start())?;
    for (rank, comm) in comms.iter().enumerate() {
        nccl(comm.all_reduce(&send[rank], &mut sums[rank], &ReduceOp::Sum))?;
        nccl(comm.all_gather(&send[rank], &mut all[rank]))?;
    }
    nccl(group_end())?;
    for (rank, stream) in streams.iter().enumerate() {
        let want = reduced(ranks, COUNT, |a, b| a + b);
        checks.equal(&format!("devices: all_reduce of rank {rank}"), stream.clone_dtoh(&sums[rank])?, want);
        checks.equal(
            &format!("devices: all_gather of rank {rank}"),
            stream.clone_dtoh(&all[rank])?,
            gathered(ranks, COUNT),
        );
    }
    Ok(())
}

/// Every rank sends to every other one.
fn exchange(streams: &[Arc<CudaStream>], comms: &[Comm], checks: &Checks) -> Result<(), Fails> {
    let ranks = comms.len();
    let send = on_devices(streams, |rank| input(rank, COUNT))?;
    let mut recv = on_devices(streams, |_| vec![0.0; ranks * COUNT])?;
    nccl(group_start())?;
    for (rank, comm) in comms.iter().enumerate() {
        for peer in 0..ranks {
            nccl(comm.send(&send[rank], peer as i32))?;
            nccl(comm.recv(&mut recv[rank].slice_mut(peer * COUNT..(peer + 1) * COUNT), peer as i32))?;
        }
    }
    nccl(group_end())?;
    for (rank, stream) in streams.iter().enumerate() {
        checks.equal(
            &format!("devices: all to all of rank {rank}"),
            stream.clone_dtoh(&recv[rank])?,
            gathered(ranks, COUNT),
        );
    }
    Ok(())
}

/// What must be refused, with NCCL's codes; afterwards the id's owner goes on.
fn refusals(stream: &Arc<CudaStream>, checks: &Checks) -> Result<(), Fails> {
    let code = |made: Result<Comm, result::NcclError>| made.map(|comm| comm.rank()).map_err(|error| error.0);
    let invalid = sys::ncclResult_t::ncclInvalidArgument;
    checks.equal("refused: rank 2 of 2", code(Comm::from_rank(stream.clone(), 2, 2, nccl(Id::new())?)), Err(invalid));
    checks.equal(
        "refused: an id of zeros",
        code(Comm::from_rank(stream.clone(), 0, 1, Id::uninit([0; 128]))),
        Err(invalid),
    );
    checks.equal("one rank alone", code(Comm::from_rank(stream.clone(), 0, 1, nccl(Id::new())?)), Ok(0));
    Ok(())
}
