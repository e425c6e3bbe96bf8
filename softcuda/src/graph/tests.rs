use super::lanes::{MAX_LANES, Plan, plan};

/// Whether `from` comes before `to` by the edges of the graph.
fn reaches(dependencies: &[Vec<usize>], from: usize, to: usize) -> bool {
    from == to || dependencies[to].iter().any(|node| reaches(dependencies, from, *node))
}

/// Order that the plan makes, by lanes and waits alone.
fn ordered(plan: &Plan) -> Vec<Vec<usize>> {
    let before = |node: usize| (0..node).rev().find(|other| plan.lane[*other] == plan.lane[node]);
    plan.waits.iter().enumerate().map(|(node, waits)| waits.iter().copied().chain(before(node)).collect()).collect()
}

#[test]
fn a_chain_is_one_lane_without_waits() {
    let chain: Vec<Vec<usize>> = (0..50usize).map(|n| n.checked_sub(1).into_iter().collect()).collect();
    let plan = plan(&chain);
    assert_eq!((plan.tails.clone(), plan.waits.iter().all(Vec::is_empty)), (vec![49], true));
}

#[test]
fn forks_and_joins_use_lanes_again() {
    // A, two branches, a join, two branches, …
    let mut dependencies: Vec<Vec<usize>> = vec![vec![]];
    for _ in 0..100 {
        let from = dependencies.len() - 1;
        dependencies.push(vec![from]);
        dependencies.push(vec![from]);
        dependencies.push(vec![from + 1, from + 2]);
    }
    let plan = plan(&dependencies);
    assert_eq!(plan.tails.len(), 2);
}

#[test]
fn plans_keep_the_order_and_add_none() {
    // Random graphs from a small generator.
    let mut seed = 12345u64;
    let mut random = |n: usize| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as usize % n
    };
    for size in 1..14 {
        for _ in 0..20 {
            let dependencies: Vec<Vec<usize>> =
                (0..size).map(|n| (0..n).filter(|_| random(4) == 0).collect()).collect();
            let made = ordered(&plan(&dependencies));
            for a in 0..size {
                for b in a..size {
                    assert_eq!(reaches(&dependencies, a, b), reaches(&made, a, b), "{a} {b} of {dependencies:?}");
                }
            }
        }
    }
}

#[test]
fn more_branches_than_lanes() {
    let plan = plan(&vec![vec![]; 3 * MAX_LANES]);
    assert_eq!(plan.tails.len(), MAX_LANES);
}
