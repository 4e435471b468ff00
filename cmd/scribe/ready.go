package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"scribe/internal/transport/rpc"
)

// maxReadyBytes bounds what is printed of an answer, which may come from any program.
const maxReadyBytes = 64 << 10

func newReady() *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "ready",
		Short: "Ask one process whether it can do its work, as health checks do",
		Long: `Ask one process whether it can do its work, and print what it says: /readyz, for health checks where there is no other HTTP client, as in the
container image. "scribe status" asks all processes of the cell.

Exit codes: 0 if it can, 5 if it can't, or does not answer.`,
		Example: `  scribe ready
  scribe ready --server https://10.0.0.1:7420 --timeout 2s`,
		Args: cobra.NoArgs,
	}
	server := serverFlag(cmd)
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Second, "how long to wait for the answer")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if timeout <= 0 {
			return usageError(fmt.Errorf("invalid value %v for --timeout: want more than 0", timeout))
		}
		url := strings.TrimSuffix(*server, "/")
		if strings.Contains(url, ",") || strings.HasPrefix(url, "unix:") {
			return usageError(fmt.Errorf("invalid value %q for --server: want the URL or host:port of one process", *server))
		}
		if !strings.Contains(url, "://") {
			url = "http://" + url
		}
		client := rpc.Default().HTTPClient()
		client.Timeout = timeout
		req, err := http.NewRequestWithContext(cmd.Context(), http.MethodGet, url+"/readyz", http.NoBody)
		if err != nil {
			return usageError(err)
		}
		res, err := client.Do(req)
		if err != nil {
			return &codedError{code: exitUnavailable, err: fmt.Errorf("no answer: %w", err)}
		}
		defer func() { _ = res.Body.Close() }()
		body, err := io.ReadAll(io.LimitReader(res.Body, maxReadyBytes))
		if err != nil {
			return &codedError{code: exitUnavailable, err: fmt.Errorf("read the answer of %s: %w", url, err)}
		}
		text := strings.TrimSpace(string(body))
		if res.StatusCode != http.StatusOK {
			return &codedError{code: exitUnavailable, err: errors.New(url + " is not ready: " + text)}
		}
		fmt.Fprintln(cmd.OutOrStdout(), text)
		return nil
	}
	return cmd
}
