//! Ranks that the kernel has killed for want of memory.

use super::*;
use crate::{exit::OUT_OF_MEMORY, fleet::node_record::Standing};

/// The standing of the only mark on the node of rank 0, and what is told of the failure.
fn killed(error: Option<&str>) -> (Standing, Cause, String) {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    bench.step("digits", 7);
    bench.rank_exits("digits", 0, Exit::Signal(9), error);
    bench.pass(SECOND);
    let marks: Vec<_> = bench
        .stored_nodes
        .values()
        .flat_map(|node| &node.marks)
        .collect();
    assert_eq!(marks.len(), 1);
    let incident = bench.job("digits").incidents.last().unwrap();
    (marks[0].standing, incident.cause, incident.message.clone())
}

#[test]
fn a_rank_that_is_too_large_speaks_against_no_node() {
    let why = format!("{OUT_OF_MEMORY}the kernel killed it, as its cgroup /x has counted");
    let (standing, cause, message) = killed(Some(&why));
    assert_eq!(
        (standing, cause),
        (Standing::Acquitted, Cause::WorkerFailed)
    );
    assert!(message.contains(&why), "{message}");
    let (standing, cause, _) = killed(None);
    assert_eq!((standing, cause), (Standing::Open, Cause::WorkerKilled));
}
