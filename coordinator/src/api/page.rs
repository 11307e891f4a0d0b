//! Pages of a list: a bounded number of items, and a bounded number of bytes.

use muster_proto::limits::{MESSAGE_MAX, PAGE_MAX};
use prost::Message;
use tonic::Status;

/// Bytes of items in one page. The other half of a message is room for the last item, which may be
/// large.
pub(crate) const PAGE_BYTES: usize = MESSAGE_MAX / 2;

/// How many items a client gets. A client that asks for none, or for more than the maximum, gets
/// the maximum.
pub(crate) fn size(asked: u32) -> usize {
    match asked as usize {
        0 => PAGE_MAX,
        size => size.min(PAGE_MAX),
    }
}

pub(crate) fn bad_token() -> Status {
    Status::invalid_argument("page_token: is not one that this server gave; start again without")
}

/// Fills a page from `items`, which come with their keys. The second value is the key of the page's
/// last item. `None`: no more items follow.
pub(crate) fn fill<K, T: Message>(
    size: usize,
    items: impl Iterator<Item = (K, T)>,
) -> (Vec<T>, Option<K>) {
    let (mut page, mut bytes, mut last) = (Vec::new(), 0, None);
    for (key, item) in items {
        let length = item.encoded_len();
        if page.len() == size || (bytes + length > PAGE_BYTES && !page.is_empty()) {
            return (page, last);
        }
        bytes += length;
        page.push(item);
        last = Some(key);
    }
    (page, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(count: usize, bytes: usize) -> impl Iterator<Item = (usize, String)> {
        (0..count).map(move |i| (i, "x".repeat(bytes)))
    }

    #[test]
    fn a_page_is_bounded_by_number_and_by_size() {
        assert_eq!(fill(3, items(3, 1)).1, None, "nothing is left");
        let (page, next) = fill(3, items(4, 1));
        assert_eq!((page.len(), next), (3, Some(2)));
        let (page, next) = fill(500, items(5, PAGE_BYTES / 2 - 10));
        assert_eq!((page.len(), next), (2, Some(1)));
        let (page, next) = fill(500, items(2, PAGE_BYTES + 1));
        assert_eq!(
            (page.len(), next),
            (1, Some(0)),
            "one that is too large goes alone"
        );
    }

    #[test]
    fn a_client_that_does_not_say_gets_the_most() {
        assert_eq!((size(0), size(7), size(u32::MAX)), (PAGE_MAX, 7, PAGE_MAX));
    }
}
