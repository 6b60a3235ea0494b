//! Requests for lists and watches, each as one future that can be kept: whoever waits for it may do something else meanwhile.

use std::{fmt, time::Duration};

use http_body_util::BodyExt;
use hyper::body::Bytes;
use kube::{
    Client,
    api::{ListParams, VersionMatch, WatchParams},
    client::Body,
    core::{ObjectList, Request, Status, request},
};
use serde::de::DeserializeOwned;

use super::{
    ApiError,
    answers::{BYTES_MAX, TooLarge},
    client::within,
    lines::Lines,
};

/// Objects in one page of a list.
const PAGE: u32 = 500;
/// Pages of a list: who says that there are more has no end.
const PAGES_MAX: usize = 1000;
/// How long one page may take, and the first bytes of a watch.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Whom to ask for what.
#[derive(Clone)]
pub(super) struct Collection {
    pub(super) client: Client,
    /// Path of the collection.
    pub(super) url: String,
    /// Field selector.
    pub(super) fields: String,
}

impl fmt::Debug for Collection {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}?fieldSelector={}", self.url, self.fields)
    }
}

impl Collection {
    /// All objects page by page, and the version as of which they are: not older than `from`, of now when it is empty.
    pub(super) async fn list<K>(self, from: String) -> Result<(Vec<K>, String), ApiError>
    where
        K: Clone + DeserializeOwned,
    {
        let mut params = ListParams::default().fields(&self.fields).limit(PAGE);
        if !from.is_empty() {
            params = params.at(&from).matching(VersionMatch::NotOlderThan);
        }
        let (mut objects, mut bytes) = (Vec::new(), 0);
        for _ in 0..PAGES_MAX {
            let text = within(ANSWER_WITHIN, self.page(&params)).await?;
            bytes += text.len();
            if bytes > BYTES_MAX {
                return Err(ApiError::Unusable(TooLarge.to_string()));
            }
            let page: ObjectList<K> =
                serde_json::from_slice(&text).map_err(|error| ApiError::of_json(&error))?;
            objects.extend(page.items);
            match page.metadata.continue_.filter(|next| !next.is_empty()) {
                Some(next) => params = params.continue_token(&next),
                None => return Ok((objects, page.metadata.resource_version.unwrap_or_default())),
            }
        }
        Err(ApiError::Unusable(format!("the list has more than {PAGES_MAX} pages")))
    }

    async fn page(&self, params: &ListParams) -> Result<Bytes, ApiError> {
        let body = self.send(Request::new(self.url.as_str()).list(params)).await?;
        whole(body).await
    }

    /// A watch from a version; with initial events a list that comes as a stream, which is not older.
    pub(super) async fn watch(self, params: WatchParams, from: String) -> Result<Lines, ApiError> {
        let params = params.fields(&self.fields);
        let request = Request::new(self.url.as_str()).watch(&params, &from);
        within(ANSWER_WITHIN, self.send(request)).await.map(Lines::of)
    }

    async fn send(&self, request: Result<http::Request<Vec<u8>>, request::Error>) -> Result<Body, ApiError> {
        let request = request.map_err(|error| ApiError::Unusable(error.to_string()))?;
        let answer = self.client.send(request.map(Body::from)).await?;
        let code = answer.status();
        let body = answer.into_body();
        if code.is_success() {
            return Ok(body);
        }
        let text = whole(body).await?;
        let status = serde_json::from_slice::<Status>(&text)
            .unwrap_or_else(|_plain| Status::failure(String::from_utf8_lossy(&text).trim(), ""));
        Err(ApiError::from(status.with_code(code.as_u16())))
    }
}

async fn whole(body: Body) -> Result<Bytes, ApiError> {
    let collected = body.collect().await.map_err(|error| ApiError::of_transport(&error))?;
    Ok(collected.to_bytes())
}
