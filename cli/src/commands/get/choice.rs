//! Which objects of a list are shown, and in which order.

use clap::Args;

use crate::{fail::Failure, selector::Selector};

/// Which of a list, and in which order.
#[derive(Debug, Default, Args)]
pub(crate) struct Choice {
    /// Only nodes with these labels: rack=r7, zone!=b, spot, !spot, rack in (r6,r7); separate several with
    /// commas. != and notin also take nodes without the label
    #[arg(short = 'l', long, value_name = "LABELS", value_parser = Selector::read, conflicts_with = "watch")]
    pub(super) selector: Option<Selector>,

    /// Order of the list: a column of the table, such as name, age, state or restarts
    #[arg(long, value_name = "COLUMN", conflicts_with = "watch")]
    pub(super) sort_by: Option<String>,
}

impl Choice {
    pub(super) fn is_of_a_list(&self, name: Option<&str>) -> Result<(), Failure> {
        match (name, self.selector.is_some() || self.sort_by.is_some()) {
            (Some(name), true) => Err(Failure::usage(format!(
                "--selector and --sort-by are for lists, and {name} is one object"
            ))),
            _ => Ok(()),
        }
    }
}
