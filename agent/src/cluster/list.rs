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
    ApiError, Unread,
    answers::TooLarge,
    client::within,
    head::{HEAD_BYTES, Head},
    lenient,
    lines::Lines,
    watch::stopping,
};
use crate::large;

/// Objects in one page of a list.
const PAGE: u32 = 500;
/// Objects of a list: who says that there are more has no end.
pub(super) const OBJECTS_MAX: usize = 500_000;
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

/// What a list has.
#[derive(Debug)]
pub(super) struct Listed<K> {
    pub(super) objects: Vec<K>,
    /// Those that are too large to be read, or not understood.
    pub(super) unread: Vec<Unread>,
    /// As of which version it is.
    pub(super) version: String,
}

/// A page as it came.
enum Page {
    Whole(Bytes),
    /// It is larger than answers may be.
    Beginning(Vec<u8>, usize),
}

impl Collection {
    /// All objects page by page, as of a version that is not older than `from`, of now when it is empty. A page that is too large is asked
    /// for in smaller ones.
    pub(super) async fn list<K>(self, mut from: String) -> Result<Listed<K>, ApiError>
    where
        K: Clone + DeserializeOwned + Send + 'static,
    {
        let (mut limit, mut next) = (PAGE, None);
        let mut all = Listed { objects: Vec::new(), unread: Vec::new(), version: String::new() };
        let mut left = OBJECTS_MAX;
        while left > 0 {
            left = left.saturating_sub(usize::try_from(limit).unwrap_or(usize::MAX));
            let params = self.params(limit, &from, next.as_deref());
            match within(ANSWER_WITHIN, self.page(&params)).await? {
                Page::Whole(text) => {
                    let page = read::<K>(text).await?;
                    all.objects.extend(page.items);
                    all.unread.extend(page.unread);
                    all.version = page.metadata.resource_version.unwrap_or_default();
                    next = page.metadata.continue_.filter(|next| !next.is_empty());
                    if next.is_none() {
                        return Ok(all);
                    }
                }
                // A server that answers from its cache may pass over the limit: that of now is never older, and has it.
                Page::Beginning(..) if next.is_none() && !from.is_empty() => from.clear(),
                Page::Beginning(..) if limit > 1 => limit = (limit / 10).max(1),
                Page::Beginning(beginning, bytes) => next = Some(pass_over(&mut all, &beginning, bytes)?),
            }
        }
        Err(ApiError::Unusable(format!("the list has more than {OBJECTS_MAX} objects")))
    }

    fn params(&self, limit: u32, from: &str, next: Option<&str>) -> ListParams {
        let params = ListParams::default().fields(&self.fields).limit(limit);
        match next {
            Some(next) => params.continue_token(next),
            None if from.is_empty() => params,
            None => params.at(from).matching(VersionMatch::NotOlderThan),
        }
    }

    async fn page(&self, params: &ListParams) -> Result<Page, ApiError> {
        let mut body = self.send(Request::new(self.url.as_str()).list(params)).await?;
        let mut text = Vec::new();
        while let Some(frame) = body.frame().await {
            match frame {
                Ok(frame) => text.extend_from_slice(&frame.into_data().unwrap_or_default()),
                Err(kube::Error::Service(error)) if error.is::<TooLarge>() => {
                    let length = text.len();
                    text.truncate(HEAD_BYTES);
                    return Ok(Page::Beginning(text, length));
                }
                Err(error) => return Err(ApiError::of_transport(&error)),
            }
        }
        Ok(Page::Whole(text.into()))
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

/// A large page is read on a thread of its own.
async fn read<K>(text: Bytes) -> Result<lenient::Page<K>, ApiError>
where
    K: Clone + DeserializeOwned + Send + 'static,
{
    let bytes = text.len();
    let read = move || match serde_json::from_slice::<ObjectList<K>>(&text) {
        Ok(ObjectList { metadata, items, .. }) => Ok(lenient::Page { metadata, items, unread: Vec::new() }),
        Err(error) => lenient::page(&text).ok_or_else(|| ApiError::of_json(&error)),
    };
    large::read(bytes, read).await.unwrap_or_else(|why| Err(stopping(why)))
}

/// A page of one object is too large: it is named, and the list goes on behind it.
fn pass_over<K>(all: &mut Listed<K>, beginning: &[u8], bytes: usize) -> Result<String, ApiError> {
    let head = Head::of(beginning);
    let (version, next) = head.list.clone();
    // Without a next page the limit may have been passed over, and this be all that there is.
    match head.object(bytes).filter(|_| !next.is_empty()) {
        Some(unread) => {
            all.unread.push(unread);
            all.version = version;
            Ok(next)
        }
        None => Err(ApiError::Unusable(TooLarge.to_string())),
    }
}
