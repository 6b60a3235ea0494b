//! `/stats/summary`. Source: `pkg/kubelet/server/stats/handler.go`.

use http::StatusCode;

use super::{super::lanes::Whole, Response, Served, error, json};
use crate::{
    causes::with_causes,
    stats::{Part, Reading},
};

/// Everything, or with `only_cpu_and_memory=true` processors, memory and swap alone. Nothing is read of what a POST sends along.
pub(super) async fn answer(served: &Served, part: Part, whole: &Whole) -> Response {
    let make = |read: Reading| match read.summary() {
        Ok(summary) => json(&summary),
        Err(failure) => {
            let text = with_causes(&failure);
            tracing::warn!(error = text, "statistics cannot be read");
            error(StatusCode::INTERNAL_SERVER_ERROR, &format!("Internal Error: {text}"))
        }
    };
    whole.answer_after(served.stats.read(part), make).await
}

/// What a query asks for.
pub(super) fn part(query: &str) -> Part {
    if is_short(query) { Part::ProcessorsAndMemory } else { Part::Everything }
}

/// Whether the query asks for it, once and in these words.
fn is_short(query: &str) -> bool {
    let mut asked = query.split('&').filter_map(|part| {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        (name == "only_cpu_and_memory").then_some(value)
    });
    asked.next() == Some("true") && asked.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_words_shorten_the_summary() {
        for (query, expected) in [
            ("only_cpu_and_memory=true", true),
            ("a=b&only_cpu_and_memory=true&c", true),
            ("only_cpu_and_memory=True", false),
            ("only_cpu_and_memory=1", false),
            ("only_cpu_and_memory", false),
            ("only_cpu_and_memory=true&only_cpu_and_memory=true", false),
            ("xonly_cpu_and_memory=true", false),
            ("", false),
        ] {
            assert_eq!(is_short(query), expected, "{query}");
        }
    }
}
