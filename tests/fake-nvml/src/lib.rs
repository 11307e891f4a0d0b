//! Fake hardware: a libnvidia-ml.so that a program cannot tell from a real one, and the sysfs,
//! procfs and kernel log of the machine around it.
//!
//! A *machine* is a directory. It holds the library, `hardware.json` (the library's answers, read
//! again whenever it changes) and `sysroot/` (what an agent reads below its `--sysroot`).
//! `muster-hardware make SCENARIO DIR` makes one, and `muster-hardware inject DIR TARGET FAULT`
//! breaks it while programs look at it. Nothing here was measured on a real GPU. Names, addresses
//! and behaviour come from public documentation and from the test doubles of other projects.
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
