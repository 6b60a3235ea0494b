//! What somebody asks to be allowed, and what is said to them. Sources: `pkg/kubelet/server/server.go` `InstallAuthFilter`,
//! `plugin/pkg/authorizer/webhook/webhook.go` of `k8s.io/apiserver`.

use super::{Route, User};

/// One question: may this user do this to a subresource of the node? What an answer is kept under.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attributes {
    /// Who asks.
    pub user: User,
    /// What they would do.
    pub verb: &'static str,
    /// To which part of the node.
    pub subresource: &'static str,
}

/// What the cluster has decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// They may.
    Allowed,
    /// They may not, or nobody says that they may.
    Denied,
}

/// What a `SubjectAccessReview` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reviewed {
    /// Somebody allows it.
    pub allowed: bool,
    /// Somebody forbids it.
    pub denied: bool,
}

impl Verdict {
    /// `None` for a review that says both.
    #[must_use]
    pub fn of(reviewed: Reviewed) -> Option<Self> {
        match (reviewed.allowed, reviewed.denied) {
            (true, true) => None,
            (true, false) => Some(Self::Allowed),
            (false, _) => Some(Self::Denied),
        }
    }
}

/// What is asked for a route, one question after the other until one is allowed.
pub fn questions<'a>(user: &'a User, route: &Route) -> impl Iterator<Item = Attributes> + use<'a> {
    let (verb, subresources) = (route.verb, route.subresources);
    subresources.iter().map(move |&subresource| Attributes { user: user.clone(), verb, subresource })
}

/// What is said to somebody who may not.
#[must_use]
pub fn forbidden(user: &User, route: &Route) -> String {
    format!(
        "Forbidden (user={}, verb={}, resource=nodes, subresource(s)=[{}])\n",
        user.name,
        route.verb,
        route.subresources.join(" ")
    )
}

/// What is said to somebody of whom nobody could say whether they may.
#[must_use]
pub fn undecided(asked: &Attributes) -> String {
    let Attributes { user, verb, subresource } = asked;
    format!(
        "Authorization error (user={}, verb={verb}, resource=nodes, subresource={subresource})",
        user.name
    )
}

#[cfg(test)]
mod tests {
    use super::{super::Debugging, *};
    use crate::server::route;

    #[test]
    fn a_fine_grained_question_comes_before_that_of_all() {
        let user = User { name: "me".to_owned(), ..User::default() };
        let route = route("GET", "/pods", Debugging::Off);
        let asked: Vec<_> = questions(&user, &route).collect();
        assert_eq!(asked.iter().map(|one| one.subresource).collect::<Vec<_>>(), ["pods", "proxy"]);
        assert!(asked.iter().all(|one| one.verb == "get" && one.user == user));
        assert_eq!(
            forbidden(&user, &route),
            "Forbidden (user=me, verb=get, resource=nodes, subresource(s)=[pods proxy])\n"
        );
        assert_eq!(
            undecided(&asked[1]),
            "Authorization error (user=me, verb=get, resource=nodes, subresource=proxy)"
        );
    }

    #[test]
    fn only_what_is_allowed_and_not_denied_is_allowed() {
        for (allowed, denied, expected) in [
            (true, false, Some(Verdict::Allowed)),
            (false, false, Some(Verdict::Denied)),
            (false, true, Some(Verdict::Denied)),
            (true, true, None),
        ] {
            assert_eq!(Verdict::of(Reviewed { allowed, denied }), expected, "{allowed} {denied}");
        }
    }
}
