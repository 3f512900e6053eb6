// Command standin serves the stand-in for GitHub's REST interface for tests of
// whole workflows. GET /_state answers what it saw.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/trtship/trtship/internal/github/githubtest"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:34600", "address to listen on")
	repository := flag.String("repository", "owner/model", "owner/name")
	readOnly := flag.Bool("read-only", false, "refuse to write, as for the pull request of a fork")
	noise := flag.Int("noise", 120, "comments of others on pull request 7")
	flag.Parse()
	api := &githubtest.API{Repository: *repository, ReadOnly: *readOnly, Comments: map[int][]githubtest.Comment{}}
	for i := range *noise {
		api.Comments[7] = append(api.Comments[7], githubtest.Comment{ID: int64(i + 1), Login: fmt.Sprintf("user%d", i), Body: "hi"})
	}
	mux := http.NewServeMux()
	mux.Handle("/", api)
	mux.HandleFunc("GET /_state", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		_ = enc.Encode(api.Snapshot())
	})
	server := &http.Server{Addr: *addr, Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	log.Fatal(server.ListenAndServe())
}
