//! What holds a connection for as long as somebody likes: sessions and logs. There are so many of them together that others always find one.

use berth_core::server::{Places, Refusal};

use super::shares::{Share, Shares};

/// Of the node.
pub(super) const NODE_MAX: usize = Places::LASTING;

/// Of one namespace, so that none takes those of all others.
pub(super) const NAMESPACE_MAX: usize = Places::LASTING_OF_NAMESPACE;

/// Places for them, by the namespace that they are of. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Lasting(Shares<String>);

/// A place, until it is dropped.
pub(super) type Lasts = Share<String>;

impl Default for Lasting {
    fn default() -> Self {
        Self(Shares::new(NODE_MAX, NAMESPACE_MAX))
    }
}

impl Lasting {
    /// Takes a place for what is of a namespace.
    ///
    /// # Errors
    /// 429 when there is none.
    pub(super) fn take(&self, namespace: &str) -> Result<Lasts, Refusal> {
        self.0.take_for_request(&namespace.to_owned(), "the namespace", "sessions and logs under way")
    }

    /// Whether nothing lasts.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_a_namespace_nor_the_node_has_more_than_its_part() {
        let lasting = Lasting::default();
        let mut held: Vec<Lasts> = (0..NAMESPACE_MAX).map(|_| lasting.take("a").unwrap()).collect();
        let refusal = lasting.take("a").unwrap_err();
        assert_eq!(refusal.status, 429);
        let text = "the namespace has 224 sessions and logs under way";
        assert!(refusal.text.starts_with(text), "{}", refusal.text);
        held.extend((0..NODE_MAX - NAMESPACE_MAX).map(|_| lasting.take("b").unwrap()));
        let refusal = lasting.take("c").unwrap_err();
        assert!(refusal.text.starts_with("the node has 448 sessions and logs"), "{}", refusal.text);
        held.pop();
        held.push(lasting.take("c").unwrap());
        drop(held);
        assert!(lasting.is_empty(), "nothing is kept of namespaces that have none");
    }
}
