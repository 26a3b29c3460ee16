module prism.dev/cluster/pause

go 1.26
