//! A GPU that was reset is well again, by the counter of its energy. No error counter has grown, so none
//! falls with the reset.

use muster_senses::Machine;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_the_agent() {
    let machine = Machine::new("4xl40s");
    let mut eyes = machine.look(&[]).await;
    machine.inject("gpu1", "xid=119");
    eyes.finding("xid:119").await;
    machine.inject("gpu1", "healthy");
    eyes.no_finding("xid:119").await;
}

/// People usually stop the agent when they reset a GPU.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_no_agent_ran() {
    let machine = Machine::new("4xl40s");
    let mut eyes = machine.look(&[]).await;
    machine.inject("gpu1", "xid=119");
    eyes.finding("xid:119").await;
    drop(eyes);
    machine.inject("gpu1", "healthy");
    let mut again = machine.look(&[]).await;
    again.no_finding("xid:119").await;
}
