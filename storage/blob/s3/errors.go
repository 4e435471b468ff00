package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"

	"github.com/minio/minio-go/v7"

	"scribe/storage/blob"
)

// ErrNoBucket means that the bucket does not exist. It does not match blob.ErrNotFound: the blobs may still exist.
var ErrNoBucket = errors.New("s3: the bucket does not exist")

// mapError wraps an error of minio-go with the sentinel that callers branch on.
func mapError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	// The caller's context ended, not that of an attempt.
	if cause := ctx.Err(); cause != nil {
		if errors.Is(err, cause) {
			return err
		}
		return fmt.Errorf("%w: %w", cause, err)
	}
	if sentinel := classifyError(err); sentinel != nil {
		return fmt.Errorf("%w: %w", sentinel, err)
	}
	return err
}

// classifyError returns the sentinel for err, or nil if there is none.
func classifyError(err error) error {
	if answer := (minio.ErrorResponse{}); errors.As(err, &answer) {
		return classifyAnswer(&answer)
	}
	var (
		urlErr *url.Error
		netErr net.Error
	)
	switch {
	case errors.As(err, &urlErr), errors.As(err, &netErr), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, context.DeadlineExceeded):
		return blob.ErrUnavailable
	default:
		return nil
	}
}

func classifyAnswer(answer *minio.ErrorResponse) error {
	switch answer.Code {
	case minio.NoSuchBucket:
		return ErrNoBucket
	case minio.NoSuchKey, minio.NoSuchVersion:
		return blob.ErrNotFound
	case minio.PreconditionFailed:
		return blob.ErrExists
	case minio.InvalidRange:
		return blob.ErrRange
	case minio.AccessDenied, minio.AllAccessDisabled, minio.InvalidAccessKeyID, minio.SignatureDoesNotMatch,
		minio.RequestTimeTooSkewed, minio.AuthorizationHeaderMalformed, "ExpiredToken", "InvalidToken":
		return blob.ErrDenied
	case "QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "InsufficientStorage":
		return blob.ErrNoSpace
	}
	switch code := answer.StatusCode; {
	case code == http.StatusNotFound:
		return blob.ErrNotFound
	case code == http.StatusPreconditionFailed:
		return blob.ErrExists
	case code == http.StatusRequestedRangeNotSatisfiable:
		return blob.ErrRange
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return blob.ErrDenied
	case code == http.StatusInsufficientStorage:
		return blob.ErrNoSpace
	case code == http.StatusTooManyRequests, code == http.StatusRequestTimeout, code >= http.StatusInternalServerError:
		return blob.ErrUnavailable
	default:
		return nil
	}
}

// answerCode returns the code of the store's answer, or "" if the store did not answer.
func answerCode(err error) string {
	if answer := (minio.ErrorResponse{}); errors.As(err, &answer) {
		return answer.Code
	}
	return ""
}
