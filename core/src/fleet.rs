//! The coordinator's brain. [`Fleet::turn_all`] is the only way to change it: inputs in, changes to
//! commit and effects to execute out.
//!
//! The shell commits [`TurnOutput::changes`] first, in their order, and only then executes
//! [`TurnOutput::effects`]. If the commit fails, the process ends and the state in memory with it: nobody
//! has heard of a decision that is not stored.
//!
//! The table goes from plain values up to the turn: a file imports only what stands above it. A
//! test holds this.
//!
//! | file | owns |
//! |---|---|
//! | **Values** | |
//! | `actor` | who asks |
//! | `receipt` | what an incident cost, phase by phase |
//! | `time_account` | where the time of a job's life has gone |
//! | `phases` | the phases of a start, from moments that were seen |
//! | `restarts_before` | how many restarts were charged in the parts of a window |
//! | `members`, `member_end` | a sealed membership; how its members ended |
//! | `job` | a job's durable record, its generations and phases |
//! | `notify` | who is told of what, and what waits to be sent |
//! | `queues` | the operator's tree of queues: quotas, and what may be borrowed |
//! | `policy` | all timings and bounds |
//! | `node_record` | a node's durable record |
//! | `worker_pod` | a pod that holds one job's place |
//! | `history` | what is left of jobs that are over |
//! | `event` | something that happened, told to people |
//! | `formed` | the sentence that names the nodes of a generation that was started |
//! | `tombstone` | what is remembered of a deleted job |
//! | `eligible` | whether a job may start: the jobs that it waits for, and its time |
//! | `held_back` | what keeps a job from starting wherever there is room |
//! | `shortage` | what a job with too few nodes lacks, as one word |
//! | `voluntary` | when a change is made that nothing forces |
//! | `live` | what is known of a job and not stored |
//! | `yields` | what a job gives up for one of higher priority |
//! | `input` | what a turn takes in |
//! | **Questions** | what records and reports say. None of them changes a job |
//! | `registry` | nodes: sessions, silence, Suspect, Lost |
//! | `places` | which members a generation has on which node, and which ranks are theirs |
//! | `generation` | one generation: ready, inert, done |
//! | `word` | whose word counts for which job |
//! | `pod_gpus` | the GPUs of a worker pod, as its host reports them |
//! | `unhealthy` | what a node's verdict on its hardware means for its members |
//! | `blame` | who broke a generation, and who pays |
//! | `rules` | what a job's own rules say about a break, a success or a deadline |
//! | `training_ranks` | the ranks that make a generation's progress, and how it usually moves |
//! | `gather` | gathers the evidence that a generation is broken |
//! | `lenders` | whether the nodes that lend to an MPI launcher outlived it |
//! | `budget` | restarts a job may have; cordons the fleet may have |
//! | `crash_loop` | a job that looks as if it could not start at all |
//! | `cannot_start` | a job that can never start |
//! | `deterministic` | a job that fails by itself at the same place again |
//! | `fault_ledger` | failures by job and node: which of the two is at fault |
//! | `account` | what incidents have cost, by cause |
//! | `news` | the notices that two states of a record make |
//! | `selected` | nodes that a job's own words select |
//! | `placement` | which nodes, in which rank order, or why none |
//! | `expected_end` | when a job that has nodes is expected to end, and from what that is known |
//! | `start_estimate` | when a job that waits will start, as a value |
//! | `plan` | what would become of a job, as a value |
//! | `agreement` | what all members agree on |
//! | `brake` | many nodes silent at once: no cordons, no replacement of jobs whose nodes are all silent, no pods for silent ones |
//! | `presence` | whether this process has just started or was stalled, and whether it listens |
//! | `store_clients` | who may connect to a generation's TCPStore |
//! | `last_words` | what the pods of a job leave behind when it is over |
//! | `desired` | each node's whole desired state |
//! | `view` | what users see |
//! | `node_list` | which nodes a person asks for: searched, in order, cut and counted |
//! | `pod_plan` | which worker pods a job lacks, and which it does not need |
//! | `pod_work` | the work for them: what is under way, and what is not known |
//! | `worker_pods` | all worker pods, and why a job has too few |
//! | `marking` | what Kubernetes Node objects should carry |
//! | `by_free` | nodes by how many of their GPUs no job holds |
//! | `capacity` | what all nodes have left, and who holds the rest |
//! | `room` | what one node has left for one job |
//! | `fair_share` | who has used how much of late, and so whose jobs come first among equals |
//! | `settle_order` | which jobs may take room, and in which order |
//! | `reservations` | room that jobs which wait keep from those behind them |
//! | `ledger` | what the jobs of each queue hold, and who waits within its quota |
//! | `shares` | what one namespace may ask of the coordinator |
//! | `equal_asks` | what jobs lack, for those that ask for the same |
//! | **What a turn decides** | |
//! | `output` | changes to store, effects, answers |
//! | `write_order`, `commit` | in which order records become durable; the version of each |
//! | `changes`, `event_log` | which records a turn may have changed; what it tells people |
//! | `scratch` | all that a turn gathers on its way |
//! | **Nodes** | rules that change a node's record |
//! | `health_events` | tells what keeps work away from a node |
//! | `cordon` | keeps new work away from a node |
//! | `objects` | what Kubernetes Node objects say |
//! | `audit` | whether what is reserved is what the records say |
//! | **One job's turn** | rules that change one job's record |
//! | `job_turn` | one job while it is settled, and what its rules may read |
//! | `limits` | how many GPUs it may have, by its namespace and its queue |
//! | `queue_view` | what users see of the queues |
//! | `candidates` | the nodes as placement sees them for it |
//! | `kept_room` | who keeps room from it, and how many GPUs that leaves it |
//! | `chosen_nodes` | on which nodes it keeps room while it waits |
//! | `gang` | the gang that it gets |
//! | `preempt` | which jobs give up what for one that waits |
//! | `node_mix` | members whose software does not go together |
//! | `stalled` | does its generation stand still |
//! | `slow` | which of its ranks make the others wait |
//! | `judge` | is its generation done, or broken |
//! | `member_restart` | processes that are started again while the others go on |
//! | `marks` | what its failures say about nodes |
//! | `ending`, `broken` | how a job ends; what a break costs |
//! | `apply` | acts on what was judged |
//! | `prewarm` | nodes that are to join get a launcher ready first |
//! | `resize` | does its generation give way to another |
//! | `lifetime` | its deadlines |
//! | `give_up` | a job gives room to one of higher priority |
//! | `suspend` | a suspended job holds no nodes |
//! | `default_gpus` | how many GPUs it takes if it does not say |
//! | `open`, `start` | its next generation: opened, started |
//! | `fence`, `ends`, `fill_receipt` | what is recorded about its members |
//! | `keep_time` | in which state the account of its time is |
//! | `worlds` | ranks that do not form the world that the job asked for |
//! | `forced_ends` | tells what had to be killed |
//! | `step_pattern` | tells that a `stepPattern` is not searched for |
//! | `describe` | its phase, reason and sentence |
//! | `long_wait` | tells that it waits too long |
//! | **The turn** | |
//! | `state` | all that one coordinator knows |
//! | `shown` | what users see of it |
//! | `leave_record` | a job that is over leaves a record |
//! | `rollback`, `namesake` | nodes that know more than the store; two machines of one name |
//! | `pod_news`, `forget` | worker pods; nodes that are gone for long |
//! | `ingest` | what agents say, and what their silence says |
//! | `welcome` | an agent's session begins |
//! | `too_large` | a job whose record the store refuses |
//! | `dependencies` | jobs that others wait for |
//! | `foresee` | plays the ends that are expected, and asks placement after each |
//! | `what_if` | what would become of a job if it were submitted now |
//! | `requests` | what users ask for |
//! | `expiry` | jobs that are deleted some time after their end |
//! | `tell` | hands the news of a turn to those who want them |
//! | `settle` | which jobs have news, and the steps of one job |
//! | `finish` | what was touched becomes changes and effects |
//! | `turn` | the one door |

pub mod account;
mod actor;
mod agreement;
mod apply;
mod audit;
mod blame;
mod brake;
mod broken;
mod budget;
mod by_free;
mod candidates;
mod cannot_start;
mod capacity;
mod changes;
mod chosen_nodes;
pub mod commit;
mod cordon;
pub mod crash_loop;
mod default_gpus;
mod dependencies;
mod describe;
mod desired;
mod deterministic;
pub mod eligible;
mod ending;
mod ends;
mod equal_asks;
mod event;
mod event_log;
pub mod expected_end;
mod expiry;
pub mod fair_share;
mod fault_ledger;
mod fence;
mod fill_receipt;
mod finish;
mod forced_ends;
mod foresee;
mod forget;
pub mod formed;
mod gang;
mod gather;
mod generation;
mod give_up;
mod health_events;
pub mod held_back;
pub mod history;
mod ingest;
mod input;
pub mod job;
mod job_turn;
mod judge;
mod keep_time;
mod kept_room;
mod last_words;
mod leave_record;
mod ledger;
mod lenders;
mod lifetime;
mod limits;
mod live;
mod long_wait;
mod marking;
mod marks;
pub mod member_end;
mod member_restart;
pub mod members;
mod namesake;
mod news;
pub mod node_list;
mod node_mix;

mod node_record;
pub mod notify;
mod objects;
mod open;
mod output;
pub mod phases;
mod placement;
mod places;
pub mod plan;
mod pod_gpus;
mod pod_news;
pub mod pod_plan;
pub mod pod_work;
mod policy;
mod preempt;
mod presence;
mod prewarm;
mod queue_view;
pub mod queues;
pub mod receipt;
mod registry;
mod requests;
mod reservations;
mod resize;
pub mod restarts_before;
mod rollback;
mod room;
mod rules;
mod scratch;
mod selected;
mod settle;
mod settle_order;
mod shares;
pub mod shortage;
mod shown;
mod slow;
mod stalled;
mod start;
pub mod start_estimate;
mod state;
mod step_pattern;
pub mod store_clients;
mod suspend;
mod tell;
#[cfg(test)]
mod tests;
pub mod time_account;
mod tombstone;
mod too_large;
mod training_ranks;
mod turn;
mod unhealthy;
pub mod view;
mod voluntary;
mod welcome;
mod what_if;
mod word;
pub mod worker_pod;
mod worker_pods;
mod worlds;
mod write_order;
mod yields;

pub use actor::Actor;
pub use event::Event;
pub use input::{Input, ObjectNews, PodNews, Request, RequestId, Stored};
pub use node_record::{Cordon, CordonedBy, Halt, HoldOff, Mark, NodeRecord, Standing};
pub use output::{Answer, Change, Effect, Refusal, TurnOutput};
pub use policy::{CordonMode, GpusMax, Policy, Rate};
pub use queue_view::queue_views;
pub use shares::fair_share;
pub use state::Fleet;
pub use tombstone::Tombstone;
