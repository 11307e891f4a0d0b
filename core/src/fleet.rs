//! The coordinator's brain. [`Fleet::turn`] is its only door: one input in, changes to commit and
//! effects to execute out.
//!
//! The shell commits [`Turn::changes`] first, in their order, and only then executes
//! [`Turn::effects`] (DESIGN R1). If the commit fails, the process ends and the state in memory
//! with it: nobody has heard of a decision that is not stored.
//!
//! The table goes from plain values up to the turn. A test checks that no two files need each
//! other by their imports, not even through other files.
//!
//! | file | owns |
//! |---|---|
//! | **Values** | |
//! | `actor` | who asks |
//! | `policy` | all timings and bounds |
//! | `receipt` | what an incident cost, phase by phase |
//! | `members`, `member_end` | a sealed membership; how its members ended |
//! | `job` | a job's durable record, its generations and phases |
//! | `node_record` | a node's durable record |
//! | `worker_pod` | a pod that holds one job's place |
//! | `event` | something that happened, told to people |
//! | `tombstone` | what is remembered of a deleted job |
//! | `live` | what is known of a job and not stored |
//! | `input`, `output` | what a turn takes in, and what it decides |
//! | **Questions** | pure functions of records and reports |
//! | `registry` | nodes: sessions, silence, Suspect, Lost |
//! | `generation` | one generation: ready, inert, done |
//! | `evidence` | what says that a generation is broken |
//! | `blame` | who broke it, and who pays |
//! | `budget` | restarts a job may have; cordons the fleet may have |
//! | `crash_loop` | a job that looks as if it could not start at all |
//! | `fault_ledger` | failures by job and node: which of the two is at fault |
//! | `account` | what incidents have cost, by cause |
//! | `placement` | which nodes, in which rank order, or why none |
//! | `agreement` | what all members agree on |
//! | `brake` | many nodes silent at once: no cordons, nothing wholly silent is replaced |
//! | `presence` | whether the coordinator itself was there, and whether it listens |
//! | `desired` | each node's whole desired state |
//! | `view` | what users see |
//! | `job_object`, `job_status` | what a `MusterJob` object asks for, and what its status says |
//! | `pod_plan` | which worker pods a job lacks, and which it does not need |
//! | `worker_pods` | all of them, and why jobs lack more |
//! | `marking` | what Kubernetes Node objects should carry |
//! | **One job's turn** | rules that change one job's record |
//! | `scratch` | what a turn gathers on its way |
//! | `job_turn` | one job while it is settled, and what its rules may read |
//! | `judge` | is its generation done, or broken |
//! | `broken`, `ending` | what a break costs; how a job ends |
//! | `marks` | what its failures say about nodes |
//! | `resize` | does its generation give way to another |
//! | `suspend` | a suspended job holds no nodes |
//! | `open` | its next generation: opened, started |
//! | `prewarm` | nodes that are to join get a launcher ready first |
//! | `capacity` | what nodes have left for it |
//! | `store_clients` | who may connect to a generation's TCPStore |
//! | `unhealthy`, `software_mismatch` | members that should leave, or do not go together |
//! | `fence`, `ends`, `fill_receipt` | what is taken down about its members |
//! | `describe` | its phase, reason and sentence |
//! | `cordon` | keeps new work away from a node |
//! | **The turn** | |
//! | `turn` | the one door |
//! | `hello` | an agent's session begins |
//! | `ingest` | what agents say, and what their silence says |
//! | `namesake`, `rollback`, `objects`, `pod_news`, `forget` | second machines, old stores, Node objects, worker pods, gone nodes |
//! | `requests` | what users ask for |
//! | `admission` | which jobs may take room, and in which order |
//! | `settle` | which jobs have news, and the steps of one job |
//! | `finish` | what was touched becomes changes and effects |
//! | `write_order`, `commit` | in which order records become durable; the version of each |

pub mod account;
mod actor;
mod admission;
mod agreement;
mod blame;
mod brake;
mod broken;
mod budget;
mod capacity;
pub mod commit;
mod cordon;
pub mod crash_loop;
mod describe;
mod desired;
mod ending;
mod ends;
mod event;
mod evidence;
mod fault_ledger;
mod fence;
mod fill_receipt;
mod finish;
mod forget;
mod generation;
mod hello;
mod ingest;
mod input;
pub mod job;
pub mod job_object;
pub mod job_status;
mod job_turn;
mod judge;
mod live;
mod marking;
mod marks;
pub mod member_end;
pub mod members;
mod namesake;
mod node_record;
mod objects;
mod open;
mod output;
mod placement;
mod pod_news;
pub mod pod_plan;
mod policy;
mod presence;
mod prewarm;
pub mod receipt;
mod registry;
mod requests;
mod resize;
mod rollback;
mod scratch;
mod settle;
mod software_mismatch;
pub mod store_clients;
mod suspend;
#[cfg(test)]
mod tests;
mod tombstone;
mod turn;
mod unhealthy;
pub mod view;
pub mod worker_pod;
mod worker_pods;
mod write_order;

pub use actor::Actor;
pub use event::Event;
pub use input::{Hello, Input, ObjectNews, PodNews, Request, RequestId, Stored};
pub use node_record::{Cordon, CordonedBy, Halt, HoldOff, Mark, NodeRecord, Standing};
pub use output::{Answer, Change, Effect, Refusal, Turn};
pub use policy::{CordonMode, Policy};
pub use tombstone::Tombstone;
pub use turn::Fleet;
