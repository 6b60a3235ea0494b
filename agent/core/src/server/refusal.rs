//! What a client is told in place of what it has asked for.

/// Seconds after which a client may ask again.
const RETRY_AFTER: &str = "10";

/// An answer of HTTP to a request that is not granted, in words that clients know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Status.
    pub status: u16,
    /// Why.
    pub text: String,
    /// Headers beside it, names in lower case.
    pub headers: Vec<(&'static str, String)>,
}

impl Refusal {
    /// A status with its reason.
    #[must_use]
    pub fn new(status: u16, text: impl Into<String>) -> Self {
        Self { status, text: text.into(), headers: Vec::new() }
    }

    /// 400.
    #[must_use]
    pub fn bad_request(text: impl Into<String>) -> Self {
        Self::new(400, text)
    }

    /// 429: as many of something as there may be of `whose`. Source: `WriteError` of `pkg/streaming/errors.go`.
    #[must_use]
    pub fn too_many(whose: &str, most: usize, what: &str) -> Self {
        let text = format!("{whose} has {most} {what}, which is as many as it may: end one of them");
        Self::new(429, text).with("retry-after", RETRY_AFTER)
    }

    /// This, and a header beside it.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }
}
