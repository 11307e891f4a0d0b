//! The files of a room need each other in one direction only: no two of them need each other.

use std::collections::BTreeSet;

use muster_architecture::{expect_none, uses::Room};

/// The rooms that are held, and the fewest units that each has. A room that has moved must not pass
/// because nothing is found in it.
const ROOMS: [(&str, usize); 5] = [
    ("core/src/fleet/", 30),
    ("agent/src/", 20),
    ("agent/src/probe/", 15),
    ("coordinator/src/", 10),
    ("coordinator/src/api/", 14),
];

#[test]
fn no_two_files_of_a_room_need_each_other() {
    let mut wrong = Vec::new();
    for (folder, units) in ROOMS {
        let room = Room::read(folder);
        assert!(room.needs.len() >= units, "the room has moved: {folder}");
        let needs: usize = room.needs.values().map(BTreeSet::len).sum();
        assert!(needs >= units, "only {needs} uses were found in {folder}");
        let in_room = |way: String| format!("{folder}: {way}");
        wrong.extend(room.circles().into_iter().map(in_room));
    }
    expect_none(
        &wrong,
        "move what both need into a file that stands below both",
    );
}

#[test]
fn a_file_of_a_room_names_the_file_it_needs() {
    let wrong: Vec<String> = ROOMS
        .iter()
        .flat_map(|(folder, _)| Room::read(folder).from_above)
        .collect();
    expect_none(
        &wrong,
        "name the file: fleet::policy::Policy. What only the room's own file has belongs into a file",
    );
}
