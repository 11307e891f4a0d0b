//! Hardware that is not there: a libnvidia-ml.so as far as a program can tell, and the sysfs,
//! procfs and kernel log of the machine around it.
//!
//! A *machine* is a directory: the library, `hardware.json` (what the library answers, read again
//! whenever it changes) and `sysroot/` (what an agent reads below its `--sysroot`).
//! `muster-hardware make SCENARIO DIR` makes one, `muster-hardware inject DIR TARGET FAULT` breaks
//! it while programs look at it. Nothing here is measured from a real GPU: names, addresses and
//! behaviour are restated from public documentation and from what other projects' test doubles do.
//!
//! | file | owns |
//! |---|---|
//! | `hardware` | what the library answers, as data |
//! | `abi` | the C functions |
//! | `state` | the file behind them, and events that wait |
//! | `shapes` | whole machines by name |
//! | `tree` | files and links below a sysroot |
//! | `pci`, `network` | PCI devices and NICs in such a tree |
//! | `fault` | what can break, and be mended |
//! | `machine` | the directory |

mod abi;
pub mod fault;
pub mod hardware;
pub mod machine;
mod network;
mod pci;
pub mod shapes;
mod state;
mod tree;
