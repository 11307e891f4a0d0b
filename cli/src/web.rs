//! Pages about jobs and nodes, for a browser on this machine (`muster web`), or in one file (`muster report`).
//!
//! The pages come from `muster_page`. What they show is asked of the coordinator as the person who runs the command, so they show what
//! `muster get` and `muster explain` show this person, with the same roles and the same audit trail. Nothing here changes a job or a node.
//!
//! | file | owns |
//! |---|---|
//! | `door` | who may see the pages |
//! | `asked` | what is asked of the coordinator |
//! | `pages` | which address has which page |
//! | `shared` | one answer for all who ask for the same at the same time |

pub(crate) mod asked;
pub(crate) mod door;
pub(crate) mod pages;
pub(crate) mod shared;
