//! Allocation: a slab pool and other allocators.

use std::process::ExitCode;

use umf_benches::allocators::{Peer, Slab, Subject, peers};
use umf_benches::bench::{self, Bench};
use umf_benches::libumf::{Libumf, PEER, Settings, Visibility};
use umf_benches::measure::in_turns;
use umf_benches::workload::{LARGE, Order, Plan, SMALL};
use umf_benches::{Result, process};

fn main() -> ExitCode {
    bench::main(measure, process::produce)
}

fn measure(bench: &mut Bench) -> Result<()> {
    let mut peers = peers();
    if let Some(path) = &bench.peer_umf {
        peers.push(Peer::new(PEER, Libumf::open(path, Settings::pooling(Visibility::Private))?));
    }
    let orders = [
        ("pair", Order::Pair),
        ("random", Order::Random),
        ("xfree", Order::CrossFree),
        ("larson", Order::Larson),
    ];
    for (size, sizes) in [("small", SMALL), ("large", LARGE)] {
        for (order_name, order) in orders {
            let counts: &[usize] = if matches!(order, Order::Larson) { &[1, 2, 4, 8] } else { &[1, 2, 4] };
            for &threads in counts {
                let plan = Plan::new(bench.quick, order, sizes, threads);
                bench.row(&format!("pool.{size}.{order_name}.{threads}t"), |bench| {
                    // A new pool for each row, so that rows do not depend on each other.
                    let ours = Slab::new()?;
                    let able =
                        peers.iter().filter(|peer| plan.is_single_threaded() || !peer.is_single_threaded);
                    let mut subjects: Vec<(&str, &dyn Subject)> = vec![("umf", &ours)];
                    subjects.extend(able.map(|peer| (peer.name, &*peer.subject)));
                    in_turns(bench, &subjects, |subject| subject.run(&plan))
                })?;
            }
        }
    }
    Ok(())
}
