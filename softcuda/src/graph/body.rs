//! A graph as the client builds it: nodes, what they depend on, user objects.

use super::State;
use super::node::Work;
use super::object::Held;
use crate::error::{CudaError, Outcome};
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

/// Where a node's handle leads.
#[derive(Default)]
pub struct Slot {
    graph: AtomicU64,
}

/// A node.
pub struct Node {
    /// `CUgraphNode`
    pub handle: u64,
    /// The node that this one was cloned from, 0 for none.
    pub origin: u64,
    /// What it does.
    pub work: Work,
    /// The nodes that it depends on.
    pub dependencies: Vec<u64>,
}

/// What a graph consists of.
#[derive(Default)]
pub struct Body {
    /// The graph's handle; 0 once it is destroyed.
    handle: u64,
    id: u64,
    /// It belongs to a node of another graph.
    nested: bool,
    /// In the order of their making.
    nodes: Vec<Node>,
    places: HashMap<u64, usize>,
    /// References to user objects.
    pub held: Vec<Held>,
}

/// `CUgraph`
#[derive(Default)]
pub struct Graph {
    body: Mutex<Body>,
}

/// A node of a graph whose child graphs were put in place of their nodes.
pub struct Flat {
    /// Handle of the node; of the child graph's own for those inside.
    pub node: u64,
    /// Never a child graph.
    pub work: Work,
    /// Indices of nodes further ahead.
    pub dependencies: Vec<usize>,
}

impl Body {
    /// Unique number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// All nodes, in the order of their making.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// A node of this graph.
    pub fn node(&self, handle: u64) -> Outcome<&Node> {
        self.places.get(&handle).map(|place| &self.nodes[*place]).ok_or(CudaError::INVALID_VALUE)
    }

    fn node_mut(&mut self, handle: u64) -> Outcome<&mut Node> {
        self.places.get(&handle).map(|place| &mut self.nodes[*place]).ok_or(CudaError::INVALID_VALUE)
    }

    /// All are nodes of this graph, and none is there twice.
    pub fn check(&self, nodes: &[u64]) -> Outcome {
        let mut seen = HashSet::new();
        let sound = nodes.iter().all(|node| self.places.contains_key(node) && seen.insert(node));
        if sound { Ok(()) } else { Err(CudaError::INVALID_VALUE) }
    }

    /// Adds a node.
    pub fn add(&mut self, driver: &'static State, dependencies: Vec<u64>, work: Work) -> Outcome<u64> {
        self.check(&dependencies)?;
        let made = driver.graphs.nodes.insert(|slot, _| slot.graph.store(self.handle, Ordering::Relaxed));
        let (handle, _) = made.ok_or(CudaError::OUT_OF_MEMORY)?;
        self.places.insert(handle, self.nodes.len());
        self.nodes.push(Node { handle, origin: 0, work, dependencies });
        Ok(handle)
    }

    /// Adds `from[i] → to[i]` for each i.
    pub fn connect(&mut self, edges: &[(u64, u64)]) -> Outcome {
        for (index, (from, to)) in edges.iter().enumerate() {
            let twice = self.node(*to)?.dependencies.contains(from) || edges[..index].contains(&(*from, *to));
            if self.node(*from).is_err() || from == to || twice {
                return Err(CudaError::INVALID_VALUE);
            }
        }
        edges.iter().try_for_each(|(from, to)| {
            self.node_mut(*to)?.dependencies.push(*from);
            Ok(())
        })
    }

    /// Takes edges away, all of which must be there.
    pub fn disconnect(&mut self, edges: &[(u64, u64)]) -> Outcome {
        for (from, to) in edges {
            if !self.node(*to)?.dependencies.contains(from) {
                return Err(CudaError::INVALID_VALUE);
            }
        }
        edges.iter().try_for_each(|(from, to)| {
            self.node_mut(*to)?.dependencies.retain(|node| node != from);
            Ok(())
        })
    }

    /// All edges, from and to.
    pub fn edges(&self) -> Vec<(u64, u64)> {
        self.nodes.iter().flat_map(|to| to.dependencies.iter().map(|from| (*from, to.handle))).collect()
    }

    /// Nodes that depend on this one.
    pub fn dependents(&self, node: u64) -> Vec<u64> {
        self.nodes.iter().filter(|n| n.dependencies.contains(&node)).map(|n| n.handle).collect()
    }

    /// All that come before some nodes, and these.
    pub fn ancestors(&self, of: &[u64]) -> HashSet<u64> {
        let mut found = HashSet::new();
        let mut left = of.to_vec();
        while let Some(node) = left.pop() {
            if found.insert(node) {
                left.extend(self.node(node).map_or(&[][..], |node| &node.dependencies));
            }
        }
        found
    }

    /// A drawing in the language of Graphviz.
    pub fn dot(&self) -> String {
        let mut text = format!("digraph graph_{} {{\n", self.id);
        for (place, node) in self.nodes.iter().enumerate() {
            text += &format!("  n{place} [shape=box, label=\"{}: {}\"];\n", place, node.work.label());
            let edges = node.dependencies.iter().filter_map(|before| self.places.get(before));
            edges.for_each(|before| text += &format!("  n{before} -> n{place};\n"));
        }
        text + "}\n"
    }

    /// Indices of all nodes, what they depend on first, else in the order of their making. Error: a cycle.
    fn order(&self) -> Outcome<Vec<usize>> {
        let mut left: Vec<usize> = self.nodes.iter().map(|node| node.dependencies.len()).collect();
        let mut followers = vec![Vec::new(); self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            node.dependencies.iter().for_each(|before| followers[self.places[before]].push(index));
        }
        let mut ready: BinaryHeap<_> = (0..left.len()).filter(|index| left[*index] == 0).map(Reverse).collect();
        let mut order = Vec::new();
        while let Some(Reverse(index)) = ready.pop() {
            order.push(index);
            for follower in &followers[index] {
                left[*follower] -= 1;
                if left[*follower] == 0 {
                    ready.push(Reverse(*follower));
                }
            }
        }
        if order.len() == left.len() { Ok(order) } else { Err(CudaError::INVALID_VALUE) }
    }

    /// Adds all nodes to `flat`, those without dependencies after `entry`. Returns what comes last, and collects the
    /// user objects.
    fn flatten(
        &self,
        driver: &'static State,
        entry: &[usize],
        flat: &mut Vec<Flat>,
        held: &mut Vec<Held>,
    ) -> Outcome<Vec<usize>> {
        let mut exits: Vec<Vec<usize>> = vec![Vec::new(); self.nodes.len()];
        let mut last = vec![true; self.nodes.len()];
        held.extend(self.held.iter().cloned());
        for index in self.order()? {
            let node = &self.nodes[index];
            let mut before = if node.dependencies.is_empty() { entry.to_vec() } else { Vec::new() };
            for place in node.dependencies.iter().map(|handle| self.places[handle]) {
                last[place] = false;
                before.extend(&exits[place]);
            }
            before.sort_unstable();
            before.dedup();
            let mut ends = Vec::new();
            if let Work::Child(child) = node.work {
                ends = with(driver, child, |body| body.flatten(driver, &before, flat, held))?;
            }
            if ends.is_empty() {
                let work = if matches!(node.work, Work::Child(_)) { Work::Empty } else { node.work.clone() };
                ends.push(flat.len());
                flat.push(Flat { node: node.handle, work, dependencies: before });
            }
            exits[index] = ends;
        }
        Ok(exits.into_iter().zip(last).filter(|(_, last)| *last).flat_map(|(ends, _)| ends).collect())
    }
}

/// `cuGraphCreate`; `nested`: for a node of another graph.
pub fn create(driver: &'static State, nested: bool) -> Outcome<u64> {
    let id = driver.unique();
    let made = driver.graphs.graphs.insert(|graph, handle| {
        *graph.body.lock() = Body { handle, id, nested, ..Body::default() };
    });
    Ok(made.ok_or(CudaError::OUT_OF_MEMORY)?.0)
}

/// Does something with a graph.
pub fn with<T>(driver: &'static State, graph: u64, act: impl FnOnce(&mut Body) -> Outcome<T>) -> Outcome<T> {
    let mut body = driver.graphs.graphs.get(graph).ok_or(CudaError::INVALID_VALUE)?.body.lock();
    if body.handle == graph { act(&mut body) } else { Err(CudaError::INVALID_VALUE) }
}

/// Handle of the graph that a node belongs to.
pub fn graph_of(driver: &'static State, node: u64) -> Outcome<u64> {
    let slot = driver.graphs.nodes.get(node).ok_or(CudaError::INVALID_VALUE)?;
    Ok(slot.graph.load(Ordering::Relaxed))
}

/// Does something with a node.
pub fn with_node<T>(driver: &'static State, node: u64, act: impl FnOnce(&mut Node) -> Outcome<T>) -> Outcome<T> {
    with(driver, graph_of(driver, node)?, |body| act(body.node_mut(node)?))
}

/// `cuGraphDestroy`; a child graph goes with its node.
pub fn destroy(driver: &'static State, graph: u64) -> Outcome {
    with(driver, graph, |body| if body.nested { Err(CudaError::INVALID_VALUE) } else { Ok(()) })?;
    discard(driver, graph)
}

/// Destroys any graph, with its nodes and their child graphs.
pub fn discard(driver: &'static State, graph: u64) -> Outcome {
    let object = driver.graphs.graphs.remove(graph).ok_or(CudaError::INVALID_VALUE)?;
    let body = std::mem::take(&mut *object.body.lock());
    body.nodes.iter().for_each(|node| forget(driver, node));
    driver.graphs.graphs.recycle(graph);
    Ok(())
}

fn forget(driver: &'static State, node: &Node) {
    if let Work::Child(child) = node.work {
        let _ = discard(driver, child);
    }
    if driver.graphs.nodes.remove(node.handle).is_some() {
        driver.graphs.nodes.recycle(node.handle);
    }
}

/// `cuGraphDestroyNode`: with all its edges.
pub fn destroy_node(driver: &'static State, node: u64) -> Outcome {
    let gone = with(driver, graph_of(driver, node)?, |body| {
        let place = *body.places.get(&node).ok_or(CudaError::INVALID_VALUE)?;
        let gone = body.nodes.remove(place);
        body.places = body.nodes.iter().enumerate().map(|(place, node)| (node.handle, place)).collect();
        body.nodes.iter_mut().for_each(|other| other.dependencies.retain(|before| *before != node));
        Ok(gone)
    })?;
    forget(driver, &gone);
    Ok(())
}

/// A copy of a graph, with child graphs and references to user objects.
pub fn copy(driver: &'static State, graph: u64, nested: bool) -> Outcome<u64> {
    let made = create(driver, nested)?;
    let (nodes, held): (Vec<_>, Vec<_>) = with(driver, graph, |body| {
        let nodes = body.nodes.iter().map(|node| (node.handle, node.work.clone(), node.dependencies.clone()));
        Ok((nodes.collect(), body.held.clone()))
    })?;
    let mut renamed = HashMap::new();
    let copied = with(driver, made, |body| {
        body.held = held;
        for (origin, work, _) in &nodes {
            let work = match work {
                Work::Child(child) => Work::Child(copy(driver, *child, true)?),
                work => work.clone(),
            };
            let node = body.add(driver, Vec::new(), work)?;
            body.node_mut(node)?.origin = *origin;
            renamed.insert(*origin, node);
        }
        for (origin, _, dependencies) in &nodes {
            body.node_mut(renamed[origin])?.dependencies = dependencies.iter().map(|before| renamed[before]).collect();
        }
        Ok(())
    });
    if copied.is_err() {
        discard(driver, made)?;
    }
    copied.map(|()| made)
}

/// Nodes of a graph and its child graphs in an order that can be run, and references to all user objects.
pub fn flatten(driver: &'static State, graph: u64) -> Outcome<(Vec<Flat>, Vec<Held>)> {
    let (mut flat, mut held) = (Vec::new(), Vec::new());
    with(driver, graph, |body| body.flatten(driver, &[], &mut flat, &mut held))?;
    Ok((flat, held))
}

/// A child graph made of what [`flatten`] gave.
pub fn nest(driver: &'static State, flat: &[(Work, Vec<usize>)], held: Vec<Held>) -> Outcome<u64> {
    let made = create(driver, true)?;
    let filled = with(driver, made, |body| {
        body.held = held;
        for (work, dependencies) in flat {
            let before = dependencies.iter().map(|index| body.nodes[*index].handle).collect();
            body.add(driver, before, work.clone())?;
        }
        Ok(())
    });
    if filled.is_err() {
        discard(driver, made)?;
    }
    filled.map(|()| made)
}
