//! Graphs: making, looking through and changing them. Nodes' parameters are in `graph_nodes`.

use super::capture::check_edges;
use super::{CuResult, Handle, In, Out, boundary};
use crate::driver::Driver;
use crate::error::{CudaError, Outcome};
use crate::graph::Work;
use crate::graph::body::{self, Body};
use std::ffi::{OsStr, c_char, c_int, c_uint};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

#[unsafe(no_mangle)]
extern "C" fn cuGraphCreate(to: Out<Handle>, flags: c_uint) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        to.check()?;
        if flags != 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        to.set(body::create(driver, false)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphDestroy(graph: Handle) -> CuResult {
    boundary(|| body::destroy(Driver::get()?, graph))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphDestroyNode(node: Handle) -> CuResult {
    boundary(|| body::destroy_node(Driver::get()?, node))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphClone(to: Out<Handle>, graph: Handle) -> CuResult {
    boundary(|| {
        to.check()?;
        to.set(body::copy(Driver::get()?, graph, false)?)
    })
}

/// A drawing of the graph in a file. The flags ask for more detail, of which there is none.
#[unsafe(no_mangle)]
extern "C" fn cuGraphDebugDotPrint(graph: Handle, path: In<c_char>, _flags: c_uint) -> CuResult {
    boundary(|| {
        let path = Path::new(OsStr::from_bytes(path.text()?.to_bytes()));
        let drawing = body::with(Driver::get()?, graph, |body| Ok(body.dot()))?;
        std::fs::write(path, drawing).map_err(|_| CudaError::OPERATING_SYSTEM)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphNodeFindInClone(to: Out<Handle>, original: Handle, clone: Handle) -> CuResult {
    boundary(|| {
        to.check()?;
        let found = body::with(Driver::get()?, clone, |body| {
            let node = body.nodes().iter().find(|node| node.origin == original && original != 0);
            node.map(|node| node.handle).ok_or(CudaError::INVALID_VALUE)
        });
        to.set(found?)
    })
}

/// An array for the client: with a null pointer only its length is told, and where there is more room than needed,
/// the rest is zero.
fn put(found: &[Handle], to: Out<Handle>, count: Out<usize>) -> Outcome {
    if to.check().is_err() {
        return count.set(found.len());
    }
    let room = count.get()?;
    for index in 0..room {
        to.set_at(index, found.get(index).copied().unwrap_or(0))?;
    }
    count.set(found.len().min(room))
}

fn put_nodes(graph: Handle, to: Out<Handle>, count: Out<usize>, wanted: impl FnOnce(&Body) -> Vec<Handle>) -> Outcome {
    count.check()?;
    let nodes = body::with(Driver::get()?, graph, |body| Ok(wanted(body)))?;
    put(&nodes, to, count)
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphGetNodes(graph: Handle, to: Out<Handle>, count: Out<usize>) -> CuResult {
    boundary(|| put_nodes(graph, to, count, |body| body.nodes().iter().map(|node| node.handle).collect()))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphGetRootNodes(graph: Handle, to: Out<Handle>, count: Out<usize>) -> CuResult {
    let roots = |body: &Body| {
        let roots = body.nodes().iter().filter(|node| node.dependencies.is_empty());
        roots.map(|node| node.handle).collect()
    };
    boundary(|| put_nodes(graph, to, count, roots))
}

fn put_edges(graph: Handle, from: Out<Handle>, to: Out<Handle>, data: Out<u64>, count: Out<usize>) -> Outcome {
    count.check()?;
    if from.check().is_ok() != to.check().is_ok() {
        return Err(CudaError::INVALID_VALUE);
    }
    let edges = body::with(Driver::get()?, graph, |body| Ok(body.edges()))?;
    let (froms, tos): (Vec<_>, Vec<_>) = edges.into_iter().unzip();
    let room = if to.check().is_ok() { count.get()? } else { 0 };
    zero(data, room)?;
    put(&froms, from, count)?;
    // The second array has as much room as the first.
    if to.check().is_ok() {
        count.set(room)?;
    }
    put(&tos, to, count)
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphGetEdges(graph: Handle, from: Out<Handle>, to: Out<Handle>, count: Out<usize>) -> CuResult {
    boundary(|| put_edges(graph, from, to, Out(std::ptr::null_mut()), count))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphGetEdges_v2(
    graph: Handle,
    from: Out<Handle>,
    to: Out<Handle>,
    data: Out<u64>,
    count: Out<usize>,
) -> CuResult {
    boundary(|| put_edges(graph, from, to, data, count))
}

fn zero(data: Out<u64>, count: usize) -> Outcome {
    if data.check().is_err() { Ok(()) } else { (0..count).try_for_each(|index| data.set_at(index, 0)) }
}

/// Nodes on one side of a node.
struct Near {
    to: Out<Handle>,
    data: Out<u64>,
    count: Out<usize>,
}

impl Near {
    fn put(self, node: Handle, find: impl FnOnce(&Body) -> Outcome<Vec<Handle>>) -> Outcome {
        let driver = Driver::get()?;
        self.count.check()?;
        let found = body::with(driver, body::graph_of(driver, node)?, |body| find(body))?;
        if self.to.check().is_ok() {
            zero(self.data, self.count.get()?)?;
        }
        put(&found, self.to, self.count)
    }

    fn before(self, node: Handle) -> Outcome {
        self.put(node, |body| Ok(body.node(node)?.dependencies.clone()))
    }

    fn after(self, node: Handle) -> Outcome {
        self.put(node, |body| Ok(body.dependents(node)))
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphNodeGetDependencies(node: Handle, to: Out<Handle>, count: Out<usize>) -> CuResult {
    boundary(|| Near { to, data: Out(std::ptr::null_mut()), count }.before(node))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphNodeGetDependencies_v2(
    node: Handle,
    to: Out<Handle>,
    data: Out<u64>,
    count: Out<usize>,
) -> CuResult {
    boundary(|| Near { to, data, count }.before(node))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphNodeGetDependentNodes(node: Handle, to: Out<Handle>, count: Out<usize>) -> CuResult {
    boundary(|| Near { to, data: Out(std::ptr::null_mut()), count }.after(node))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphNodeGetDependentNodes_v2(
    node: Handle,
    to: Out<Handle>,
    data: Out<u64>,
    count: Out<usize>,
) -> CuResult {
    boundary(|| Near { to, data, count }.after(node))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphNodeGetType(node: Handle, kind: Out<c_int>) -> CuResult {
    boundary(|| kind.set(body::with_node(Driver::get()?, node, |node| Ok(node.work.kind()))?))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphNodeGetContainingGraph(node: Handle, graph: Out<Handle>) -> CuResult {
    boundary(|| graph.set(body::graph_of(Driver::get()?, node)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphGetId(graph: Handle, id: Out<c_uint>) -> CuResult {
    boundary(|| id.set(body::with(Driver::get()?, graph, |body| Ok(body.id()))? as c_uint))
}

type Change = fn(&mut Body, &[(Handle, Handle)]) -> Outcome;

fn change(graph: Handle, from: In<Handle>, to: In<Handle>, data: In<u64>, count: usize, how: Change) -> Outcome {
    check_edges(data, count)?;
    let edges: Vec<_> = from.list(count)?.into_iter().zip(to.list(count)?).collect();
    body::with(Driver::get()?, graph, |body| how(body, &edges))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphAddDependencies(graph: Handle, from: In<Handle>, to: In<Handle>, count: usize) -> CuResult {
    boundary(|| change(graph, from, to, In(std::ptr::null()), count, Body::connect))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphAddDependencies_v2(
    graph: Handle,
    from: In<Handle>,
    to: In<Handle>,
    data: In<u64>,
    count: usize,
) -> CuResult {
    boundary(|| change(graph, from, to, data, count, Body::connect))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphRemoveDependencies(graph: Handle, from: In<Handle>, to: In<Handle>, count: usize) -> CuResult {
    boundary(|| change(graph, from, to, In(std::ptr::null()), count, Body::disconnect))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphRemoveDependencies_v2(
    graph: Handle,
    from: In<Handle>,
    to: In<Handle>,
    data: In<u64>,
    count: usize,
) -> CuResult {
    boundary(|| change(graph, from, to, data, count, Body::disconnect))
}

/// Makes a node. Its child graph, if it is one, is made for it.
pub(super) fn add(to: Out<Handle>, graph: Handle, dependencies: (In<Handle>, usize), work: Outcome<Work>) -> Outcome {
    let driver = Driver::get()?;
    to.check()?;
    let dependencies = dependencies.0.list(dependencies.1)?;
    let work = work?;
    let child = if let Work::Child(child) = work { Some(child) } else { None };
    let added = body::with(driver, graph, |body| body.add(driver, dependencies, work));
    if let (Some(child), Err(_)) = (child, &added) {
        body::discard(driver, child)?;
    }
    to.set(added?)
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphAddEmptyNode(to: Out<Handle>, graph: Handle, dependencies: In<Handle>, count: usize) -> CuResult {
    boundary(|| add(to, graph, (dependencies, count), Ok(Work::Empty)))
}
