//! What one rank does with a communicator of its own: every call of `Comm` and of `Group`.

use cudarc::nccl::safe::{Comm, ReduceOp};

use crate::checks::Checks;
use crate::fails::{Fails, nccl};
use crate::number::{Number, gathered, input, reduced};

/// Elements of a call: several slots' worth in the wide types, and no multiple of anything.
const COUNT: usize = 70_001;

/// What a reduction does with two elements.
type Fold = fn(i64, i64) -> i64;

/// A rank at work.
pub struct Rank<'a> {
    comm: &'a Comm,
    checks: &'a Checks,
    label: &'a str,
}

impl<'a> Rank<'a> {
    /// `label` is what the names of its checks begin with.
    pub fn new(comm: &'a Comm, checks: &'a Checks, label: &'a str) -> Rank<'a> {
        Rank { comm, checks, label }
    }

    /// Everything, in every type.
    pub fn all(&self) -> Result<(), Fails> {
        self.place();
        self.reductions::<f32>("f32")?;
        self.reductions::<f64>("f64")?;
        self.reductions::<i8>("i8")?;
        self.reductions::<u8>("u8")?;
        self.reductions::<i32>("i32")?;
        self.reductions::<u32>("u32")?;
        self.reductions::<i64>("i64")?;
        self.reductions::<u64>("u64")?;
        self.average()?;
        self.reduce()?;
        self.broadcast()?;
        self.gather_and_scatter()?;
        self.messages()?;
        self.groups()
    }

    fn equal<T: PartialEq + std::fmt::Debug>(&self, name: &str, got: T, want: T) {
        self.checks.equal(&format!("{} rank {}: {name}", self.label, self.comm.rank()), got, want);
    }

    fn ranks(&self) -> usize {
        self.comm.world_size()
    }

    /// The rank before this one in a ring, and the one after it.
    fn neighbours(&self) -> (usize, usize) {
        let (rank, ranks) = (self.comm.rank(), self.ranks());
        ((rank + ranks - 1) % ranks, (rank + 1) % ranks)
    }

    fn place(&self) {
        self.equal("ordinal", self.comm.ordinal(), self.comm.rank());
        self.equal("context", self.comm.context().ordinal(), self.comm.stream().context().ordinal());
    }

    fn reductions<T: Number>(&self, name: &str) -> Result<(), Fails> {
        let folds: [(&str, ReduceOp, Fold); 4] = [
            ("sum", ReduceOp::Sum, |a, b| a + b),
            ("prod", ReduceOp::Prod, |a, b| a * b),
            ("max", ReduceOp::Max, i64::max),
            ("min", ReduceOp::Min, i64::min),
        ];
        let stream = self.comm.stream();
        for (op, code, fold) in folds {
            let send = stream.clone_htod(&input::<T>(self.comm.rank(), COUNT))?;
            let mut recv = stream.alloc_zeros::<T>(COUNT)?;
            nccl(self.comm.all_reduce(&send, &mut recv, &code))?;
            self.equal(
                &format!("all_reduce {op} {name}"),
                stream.clone_dtoh(&recv)?,
                reduced(self.ranks(), COUNT, fold),
            );
            self.equal(
                &format!("all_reduce {op} {name} leaves its input"),
                stream.clone_dtoh(&send)?,
                input(self.comm.rank(), COUNT),
            );
        }
        let mut data = stream.clone_htod(&input::<T>(self.comm.rank(), COUNT))?;
        nccl(self.comm.all_reduce_in_place(&mut data, &ReduceOp::Sum))?;
        self.equal(
            &format!("all_reduce_in_place {name}"),
            stream.clone_dtoh(&data)?,
            reduced(self.ranks(), COUNT, |a, b| a + b),
        );
        Ok(())
    }

    /// Quotients by 2 and by 4 are exact.
    fn average(&self) -> Result<(), Fails> {
        let stream = self.comm.stream();
        let send = stream.clone_htod(&input::<f32>(self.comm.rank(), COUNT))?;
        let mut recv = stream.alloc_zeros::<f32>(COUNT)?;
        nccl(self.comm.all_reduce(&send, &mut recv, &ReduceOp::Avg))?;
        let sums = reduced::<f32>(self.ranks(), COUNT, |a, b| a + b);
        let want: Vec<f32> = sums.iter().map(|sum| sum / self.ranks() as f32).collect();
        self.equal("all_reduce avg f32", stream.clone_dtoh(&recv)?, want);
        Ok(())
    }

    fn reduce(&self) -> Result<(), Fails> {
        let stream = self.comm.stream();
        for root in 0..self.ranks() {
            let is_root = self.comm.rank() == root;
            let send = stream.clone_htod(&input::<i32>(self.comm.rank(), COUNT))?;
            let mut recv = stream.alloc_zeros::<i32>(COUNT)?;
            nccl(self.comm.reduce(&send, is_root.then_some(&mut recv), &ReduceOp::Max, root as i32))?;
            let want = if is_root { reduced(self.ranks(), COUNT, i64::max) } else { vec![0; COUNT] };
            self.equal(&format!("reduce to {root}"), stream.clone_dtoh(&recv)?, want);

            let mut data = stream.clone_htod(&input::<f64>(self.comm.rank(), COUNT))?;
            nccl(self.comm.reduce_in_place(&mut data, &ReduceOp::Sum, root as i32))?;
            if is_root {
                self.equal(
                    &format!("reduce_in_place to {root}"),
                    stream.clone_dtoh(&data)?,
                    reduced(self.ranks(), COUNT, |a, b| a + b),
                );
            }
        }
        Ok(())
    }

    fn broadcast(&self) -> Result<(), Fails> {
        let stream = self.comm.stream();
        for root in 0..self.ranks() {
            let send = stream.clone_htod(&input::<u8>(self.comm.rank(), COUNT))?;
            let mut recv = stream.alloc_zeros::<u8>(COUNT)?;
            let from = (self.comm.rank() == root).then_some(&send);
            nccl(self.comm.broadcast(from, &mut recv, root as i32))?;
            self.equal(&format!("broadcast from {root}"), stream.clone_dtoh(&recv)?, input(root, COUNT));

            let mut data = stream.clone_htod(&input::<i64>(self.comm.rank(), COUNT))?;
            nccl(self.comm.broadcast_in_place(&mut data, root as i32))?;
            self.equal(&format!("broadcast_in_place from {root}"), stream.clone_dtoh(&data)?, input(root, COUNT));
        }
        Ok(())
    }

    fn gather_and_scatter(&self) -> Result<(), Fails> {
        let stream = self.comm.stream();
        let (rank, ranks) = (self.comm.rank(), self.ranks());
        let send = stream.clone_htod(&input::<f32>(rank, COUNT))?;
        let mut recv = stream.alloc_zeros::<f32>(ranks * COUNT)?;
        nccl(self.comm.all_gather(&send, &mut recv))?;
        self.equal("all_gather", stream.clone_dtoh(&recv)?, gathered(ranks, COUNT));

        let send = stream.clone_htod(&input::<u32>(rank, ranks * COUNT))?;
        let mut recv = stream.alloc_zeros::<u32>(COUNT)?;
        nccl(self.comm.reduce_scatter(&send, &mut recv, &ReduceOp::Sum))?;
        let all = reduced(ranks, ranks * COUNT, |a, b| a + b);
        self.equal("reduce_scatter", stream.clone_dtoh(&recv)?, all[rank * COUNT..(rank + 1) * COUNT].to_vec());
        Ok(())
    }

    /// Along the ranks, one after the other: no call waits for one that comes later in the same rank.
    fn messages(&self) -> Result<(), Fails> {
        let stream = self.comm.stream();
        let (rank, ranks) = (self.comm.rank(), self.ranks());
        let mut data = stream.clone_htod(&input::<i32>(rank, COUNT))?;
        if rank > 0 {
            nccl(self.comm.recv(&mut data, rank as i32 - 1))?;
        }
        if rank + 1 < ranks {
            nccl(self.comm.send(&data, rank as i32 + 1))?;
        }
        self.equal("send and recv along the ranks", stream.clone_dtoh(&data)?, input(0, COUNT));
        Ok(())
    }

    fn groups(&self) -> Result<(), Fails> {
        let stream = self.comm.stream();
        let (rank, ranks) = (self.comm.rank(), self.ranks());
        let (before, after) = self.neighbours();
        let send = stream.clone_htod(&input::<f64>(rank, COUNT))?;
        let mut from_before = stream.alloc_zeros::<f64>(COUNT)?;
        let mut sums = stream.alloc_zeros::<f64>(COUNT)?;
        let mut all = stream.alloc_zeros::<f64>(ranks * COUNT)?;
        let (part, mut parts) = (COUNT / ranks, stream.alloc_zeros::<f64>(COUNT / ranks)?);
        let mut copied = stream.clone_htod(&input::<f64>(rank, COUNT))?;
        {
            let views = (send.as_view(), send.as_view(), send.as_view(), send.slice(..part * ranks));
            let into = (from_before.as_view_mut(), sums.as_view_mut(), all.as_view_mut(), parts.as_view_mut());
            let whole = copied.as_view_mut();
            let mut group = self.comm.group();
            nccl(group.send(views.0, after as i32))?;
            nccl(group.recv(into.0, before as i32))?;
            nccl(group.all_reduce(views.1, into.1, &ReduceOp::Sum))?;
            nccl(group.all_gather(views.2, into.2))?;
            nccl(group.reduce_scatter(views.3, into.3, &ReduceOp::Prod))?;
            nccl(group.broadcast_in_place(whole, ranks as i32 - 1))?;
        }
        self.equal("group: message around the ranks", stream.clone_dtoh(&from_before)?, input(before, COUNT));
        self.equal("group: all_reduce", stream.clone_dtoh(&sums)?, reduced(ranks, COUNT, |a, b| a + b));
        self.equal("group: all_gather", stream.clone_dtoh(&all)?, gathered(ranks, COUNT));
        let products = reduced(ranks, part * ranks, |a, b| a * b);
        self.equal(
            "group: reduce_scatter",
            stream.clone_dtoh(&parts)?,
            products[rank * part..(rank + 1) * part].to_vec(),
        );
        self.equal("group: broadcast_in_place", stream.clone_dtoh(&copied)?, input(ranks - 1, COUNT));
        Ok(())
    }
}
